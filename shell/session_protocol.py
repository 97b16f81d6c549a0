"""What the daemon says to its bash, and how bash answers.

Runs as: the daemon; pure text, no descriptors.
Distrusts: everything that comes back: the agent's code runs in the same bash and can write what it likes there.
Promises: any text without NUL reaches bash unchanged and on one line; what asks bash for its state calls no command,
  so no function or alias of the agent's can stand in for it; nothing of it is seen by the command.
Does not promise: a true answer from a bash whose owner wants to lie; he lies to himself.
Checked by: tests/unit/shell/test_session_protocol.py and the conformance cases.

How it works. An interactive bash runs the text in PROMPT_COMMAND before it prompts, and there, unlike at its
prompt, it neither prints "[1] 4711" for a job nor "[1]+ Done" when one ends. So each command is one line that sets
PROMPT_COMMAND to: give the user's prompt variables back, run the command's text with its own streams, say the exit
code, take the prompt variables away again. A second line does the same once the prompt was reached; after a text that
was cut short it is the only one that does.

The prompt variables are kept by the daemon between commands: nobody sees the prompt, and what they hold may run
programs, wait, or exit.

The price of the silence: what ran in the foreground stays in bash's job table until the prompt, where ``jobs`` and
``%1`` would meet it. Text that speaks of jobs is therefore sourced from a file, where bash clears them away at once
(and says when one is done). So is text that is large, or has so many quotes that quoting them again would be slow.

Whether bash has begun with the text is known from its streams, which it opens last (see shell.opens). When it says
that it is ready and has not begun, something kept PROMPT_COMMAND from being run: line editing switched on, a variable
that is read-only or has attributes. Then the text is given to it once more, at the prompt itself; if that does not help
either, to a new shell.

With job control a pipeline has a process group of its own, and `timeout`, which becomes the leader of its group, is
that already: when it ends its group, the filters it writes to are killed as well, before they have printed. So a text
with `timeout` in a pipeline that does not speak of jobs is run without job control, as in a script.

A substitution that is never closed, ``$(`` without its bracket, makes bash overwrite its own memory afterwards, in
PROMPT_COMMAND and in sourced files, and perhaps die. So text that looks like it is evaluated at the prompt itself.

Bash "says" something through a redirection that must fail: it names the file that cannot be opened on its own
standard error. That is no command, so it can be neither shadowed nor traced, and it costs no process.
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

# Control characters would be safe raw, but 0x01 and 0x7f have a meaning inside bash. "!" may be history expansion.
_SPECIAL = re.compile(rb"[\x01-\x1f\x7f\\'!]")
_ESCAPES = {bytes([code]): b"\\%03o" % code for code in (*range(1, 32), 127, ord("\\"), ord("'"), ord("!"))}
_ESCAPES[b"\n"] = b"\\n"
_ESCAPES[b"\\"] = b"\\\\"
_ESCAPES[b"'"] = b"\\'"

# Names we call, in the order of SHADOWED's number, and ways to call them: the plain one first, the others serve when
# a function of the agent's has that name.
_NAMES = (b"eval", b"source", b"builtin", b"command")
_ANY_NAME = re.compile(rb"eval|source|builtin|command|\.\s")
# Where a command's name can stand: where a list begins, after a reserved word, assignments and redirections, and where
# text begins that is evaluated later.
_AT_COMMAND = (
    rb"(?:^|[;&|({`)\n]|\b(?:then|do|else|elif|if|while|until|time)\s|(?:^|\s)!\s"
    rb"|\b(?:eval|trap)\s+(?:--\s+)?[\"']|\balias\s[^;&|\n]{0,300}=[\"'])"
    # All bounded: a hostile text must not be looked at for seconds.
    rb"[ \t]{0,100}(?:(?:\w{1,50}=|\d{0,3}[<>]{1,3}&?[ \t]{0,5})[^\s;&|<>]{0,100}[ \t]{1,10}){0,5}"
    rb"\\?(?:(?:builtin|command)[ \t]{1,10}\\?){0,3}"
)
_JOB_WORDS = re.compile(
    _AT_COMMAND + rb"(?:(?:jobs|fg|bg|disown)(?=[\s;&|)}<>`\"']|$)|wait\s+-|%(?:\d+|[%+-]|\?\w+)(?=[\s;&|)]|$))"
    rb"|\b(?:kill|wait|fg|bg|jobs|disown)\b[^;&|\n]{0,300}\s[\"']?%[\w%+?-]"
    # One that is kept for later.
    rb"|\w=[\"']?%(?:\d+|[%+-]|\?\w+)(?=[\"'\s;&|)]|$)"
)
_QUOTED_OR_COMMENT = re.compile(rb"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|(?<![^\s;&|()])#[^\n]*", re.DOTALL)
_COMMENT = re.compile(rb"(?<![^\s;&|()])#.*")
_HERE_DOCUMENT = re.compile(rb"(?<!<)<<-?[ \t]*([\\'\"]?)(\w+)")
# A text with `timeout` in a pipeline that has nothing to do with jobs, see above.
_TIMEOUT = re.compile(rb"\btimeout\b")
_PIPE = re.compile(rb"(?<!\|)\|(?!\|)")
_BACKGROUND = re.compile(rb"(?<![&<>|])&(?![&>])")
_MONITOR_WORDS = re.compile(
    rb"\$-|\b(?:monitor|coproc|wait|suspend|trap|eval|source)\b|\bset\b[^;&|\n]{0,100}\s[-+]\w{0,20}m"
    rb"|(?:^|[;&|({\n])[ \t]{0,100}\.\s"
)
_LARGE_BYTES = 1 << 16
# Bash measures the rest of the text at each quote.
_COSTLY = 1 << 28

# What bash looks at when it prompts.
_PROMPTS = (b"PROMPT_COMMAND", b"PS1", b"PS0")
_WORD = rb"((?:'[^'\n]*'|\\'|\$'(?:[^'\\\n]|\\.)*')*)"

# Around each of our lines: a DEBUG trap that reads its standard input finds its end there, not our next line. Commands
# in a group run with the group's streams, and the group itself is none that a DEBUG trap is run for.
_APART = b"{ %s; } </dev/null"

# Bash keeps what a redirection replaces on the first free descriptor from 10 on, among the user's own. Only what a
# duplication from N replaces is kept above N, and there it is closed in programs. So what the text can look at is
# redirected from high descriptors. Each of these is then overwritten in the same way, which leaves its old content on
# the next free number (242 to 244) and closes both in programs. A text that lowers its limit makes it impossible to
# put back a high descriptor: 0, 1 and 2 therefore come last, or in an outer group, and so are put back before.
# 254 is there to fail while nothing has been run, when there are fewer descriptors than all of this needs. (255 is
# bash's.)
_HIGH_APART = b"{ %s; } 240</dev/null <&240 254<&241"
_HIGH_STREAMS = b"238>%s 239>%s 240<&241 238<&240 239<&240 1>&243 2>&244"
HIGH_DESCRIPTORS = 256
# A redirection that is none, but fails when PROMPT_COMMAND has the attribute that turns our text into lower case.
_MIXED_CASE = b' <&"$((0*${BASH_VERSINFO:?}))"'
# A call that is no builtin (`enable -n eval` in a function) is redirected in a process of its own, with nothing kept.
# What a limit makes fail afterwards names other descriptors.
_NOTHING_KEPT = b": 243: Bad file descriptor\n"

# What we call stays a builtin, whatever ``enable -n`` said: nothing else could call the next text.
_CALLED = b" ".join((*_NAMES, b"exit", b"export"))
_ENABLE = b"; { \\enable %s || \\builtin enable %s; } 2>/dev/null || _=" % (_CALLED, _CALLED)
# With `set -o vi` bash leaves PROMPT_COMMAND alone while its input is no terminal, and may crash.
_NO_EDITING = b"\\builtin set +o vi +o emacs || _="

_MONITOR_OFF = b"\\builtin set +m || _="
_MONITOR_ON = b"\\builtin set -m || _="

_LEAVE_POSIX = b"\\unset POSIXLY_CORRECT\n"

_NO_PROCESS = re.compile(rb"^bash: fork: (?!retry: )", re.MULTILINE)

# SIGINT and SIGPIPE pass without a word, as everywhere in bash.
_DEATHS = frozenset(
    (signal.strsignal(number) or "").encode()
    for number in signal.valid_signals()
    if number not in (signal.SIGINT, signal.SIGPIPE)
)


class Way(enum.Enum):
    """How bash is brought to run a text. At the bare prompt the prompt variables are left alone: one is read-only."""

    PROMPT_COMMAND = enum.auto()
    PROMPT = enum.auto()
    BARE_PROMPT = enum.auto()


class Said(enum.Enum):
    """What one line from bash means."""

    ENDED = "e"
    READY = "r"
    SHADOWED = "f"


@dataclass(frozen=True, slots=True)
class Report:
    """One message of bash's. ``number`` is ``$?``, for SHADOWED the index of a name.

    ``prompts`` of ENDED and READY: the values of the prompt variables, each as a word of bash's own quoting or empty;
    none at all at the bare prompt.
    ``options``: ``$-``, together with these.
    """

    said: Said
    number: int
    prompts: tuple[bytes, ...] = ()
    options: bytes = b""


_KINDS = {kind.value.encode(): kind for kind in Said}
# Told apart are the reports on a command and late ones on those before.
NONCE_BYTES = 6
# Matched at one place of a line only, so that no line, however long, takes more than one pass.
_MARK = b"/dev/null/"
_REPORT = re.compile(
    _MARK
    + rb"([0-9a-f]{%d})\.([erf])\.(\d{1,3})" % (2 * NONCE_BYTES)
    + rb"(?P<values>\.%s(?:/(\w*))?)?: " % b"/".join([_WORD] * len(_PROMPTS))
)


def quoted(text: bytes) -> bytes:
    """``text`` as one bash word without a newline, which bash turns back into exactly these bytes."""
    return b"$'" + _SPECIAL.sub(lambda match: _ESCAPES[match[0]], text) + b"'"


def _say(nonce: bytes, said: Said, number: bytes = b"$?") -> bytes:
    # Descriptor 9 is only named: the open fails, so nothing happens to it. (For 0 bash would start a process.)
    # The assignment makes the list succeed, so that neither `set -e` nor an ERR trap sees the failure.
    return b'9<"/dev/null/%s.%s.%s" || _=' % (nonce, said.value.encode(), number)


def _say_and_hide(nonce: bytes, said: Said) -> bytes:
    """Says the exit code and what the prompt variables hold, and empties these."""
    values = b"/".join(b"${%s+${%s@Q}}" % (name, name) for name in _PROMPTS)
    empty = b" ".join(b"%s=" % name for name in _PROMPTS)
    return b'9<"/dev/null/%s.%s.$?.%s" || %s' % (nonce, said.value.encode(), values + b"/$-", empty)


@dataclass(frozen=True, slots=True)
class Paths:
    """Where bash opens a command's standard output and standard error, and finds its text when that is in a file."""

    stdout: str
    stderr: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command as the lines below need it.

    ``text_in_file``: it lies at ``paths.text`` and is sourced from there. ``high``: bash may use HIGH_DESCRIPTORS.
    ``monitored``: job control is left as it is. ``guarded``: PROMPT_COMMAND may have attributes.
    """

    nonce: bytes
    text: bytes
    previous_code: int
    paths: Paths
    shadowed: frozenset[int]
    prompts: tuple[bytes, ...]
    text_in_file: bool
    high: bool
    monitored: bool
    guarded: bool


def belongs_in_file(text: bytes) -> bool:
    """Whether ``text`` is better sourced than evaluated, see above."""
    return len(text) > _LARGE_BYTES or len(text) * text.count(b"'") > _COSTLY or _JOB_WORDS.search(text) is not None


def _bare(text: bytes) -> bytes:
    """``text`` without what is quoted, comments, and the bodies of here-documents that nothing is expanded in."""
    return _QUOTED_OR_COMMENT.sub(b"", _without_bodies(text) if b"<<" in text else text)


def _without_bodies(text: bytes) -> bytes:
    lines = text.split(b"\n")
    last = {line.lstrip(b"\t"): number for number, line in enumerate(lines)}
    kept, at = [], 0
    while at < len(lines):
        kept.append(lines[at])
        documents = _HERE_DOCUMENT.findall(_COMMENT.sub(b"", lines[at]))
        at += 1
        for quote, word in documents:
            if last.get(word, -1) < at:  # never ended
                continue
            end = next(number for number in range(at, len(lines)) if lines[number].lstrip(b"\t") == word)
            body = b"\n".join(lines[at:end])
            if not quote and (b"$(" in body or b"`" in body):
                kept.append(body)
            at = end + 1
    return b"\n".join(kept)


def leaves_open(text: bytes) -> bool:
    """Whether a bracket of ``text`` may be left open. A guess, which costs no more than announcements of jobs."""
    if b"(" not in text or len(text) > _LARGE_BYTES:
        return False
    bare = _bare(text)
    return bare.count(b"(") > bare.count(b")")


def needs_no_jobs(text: bytes) -> bool:
    """Whether ``text`` has `timeout` in a pipeline and, as far as can be seen, nothing to do with jobs."""
    if _TIMEOUT.search(text) is None or len(text) > _LARGE_BYTES:
        return False
    bare = _bare(text)
    speaks_of_jobs = _JOB_WORDS.search(text) or _MONITOR_WORDS.search(bare) or _BACKGROUND.search(bare)
    return _PIPE.search(bare) is not None and not speaks_of_jobs


def failed_to_parse(text: bytes, stderr: bytes) -> bool:
    """Whether bash complained about an open bracket of ``text``. At the prompt its code for that is 1, not 2."""
    last = stderr[-1000:].rstrip(b"\n").rpartition(b"\n")[2]
    return leaves_open(text) and last.startswith((b"bash: syntax error", b"bash: unexpected EOF"))


def lost_the_streams(command: Command, messages: bytes) -> bool:
    """Whether bash's own ``messages`` say that the streams were opened but not given to the text, which did not run."""
    if command.high and _NOTHING_KEPT in messages:
        return True
    # Opened, but there was no descriptor left to keep what it would take the place of.
    return b"bash: %s: Too many open files\n" % command.paths.stderr.encode() in messages


def was_not_called(command: Command, ended: Report, stderr: bytes) -> bool:
    """Whether bash did not find what calls the text: a function before it said ``enable -n eval``."""
    name = b"source" if command.text_in_file else b"eval"
    return ended.number == 127 and stderr == b"bash: %s: command not found\n" % name and name not in command.text


def is_free(name: bytes, shadowed: frozenset[int]) -> bool:
    """Whether no function has this name of ours."""
    return _NAMES.index(name) not in shadowed


def may_change_prompts(text: bytes) -> bool:
    """Whether ``text`` could give PROMPT_COMMAND an attribute."""
    return _PROMPTS[0] in text


def may_shadow(text: bytes) -> bool:
    """Whether ``text`` could define functions named like what we call; bash then reports which there are."""
    return _ANY_NAME.search(text) is not None


def file_text(text: bytes, shadowed: frozenset[int]) -> bytes:
    """What to write to the file."""
    return text if _call(b"source", shadowed) else _LEAVE_POSIX + text


def command_lines(command: Command) -> bytes:
    """The lines that make bash run the command and report under its nonce."""
    nonce = command.nonce
    body = _apart(command) % b"; ".join(_steps(command))
    check = _shadow_check(nonce) if may_shadow(command.text) else b""
    if b"enable" in command.text:
        check += _ENABLE
    ready = ready_line(nonce, Way.PROMPT_COMMAND, command.monitored)
    return b" %s\n%s" % (_APART % (b"PROMPT_COMMAND=" + quoted(body + check)), ready)


def direct_lines(command: Command, way: Way) -> bytes:
    """The same at the prompt itself, where bash announces its jobs: when PROMPT_COMMAND cannot be used."""
    nonce = command.nonce
    parts = [_NO_EDITING, _run(command), _say(nonce, Said.ENDED)]
    if way is not Way.BARE_PROMPT:
        parts = [_NO_EDITING, *_steps(command)]
    first = _apart(command) % b"; ".join(parts)
    # The empty line has the parser forget what an open "((" left in it: it would not know our bracket as one.
    return b" %s\n\n%s" % (first, ready_line(nonce, way, command.monitored))


def startup_lines(nonce: bytes, setup: bytes) -> bytes:
    """The first lines of a fresh shell: ``setup`` (conf/shell.rc), then a report that it is ready."""
    first = b" \\builtin eval %s%s%s\n" % (quoted(setup), _shadow_check(nonce), _ENABLE)
    return first + ready_line(nonce, Way.PROMPT_COMMAND)


def ready_line(nonce: bytes, way: Way, monitored: bool = True) -> bytes:
    """The line that is run at the prompt, once the text is over."""
    say = (_say if way is Way.BARE_PROMPT else _say_and_hide)(nonce, Said.READY)
    return b" %s\n" % (_APART % (say if monitored else say + b"; " + _MONITOR_ON))


def _steps(command: Command) -> list[bytes]:
    """What is run around the text where the prompt variables are ours to change."""
    before = [_give_back(command.prompts), *([] if command.monitored else [_MONITOR_OFF])]
    return [*before, _run(command), _say_and_hide(command.nonce, Said.ENDED)]


def _apart(command: Command) -> bytes:
    # From inside out: the first redirection fails before anything is open.
    apart = _HIGH_APART if command.high else _APART
    return apart.replace(b"}", b"}" + _MIXED_CASE, 1) if command.guarded else apart


def _give_back(prompts: Iterable[bytes]) -> bytes:
    return b" ".join(b"%s=%s" % pair for pair in zip(_PROMPTS, prompts, strict=True))


def reports(nonce: bytes, data: bytes) -> tuple[list[Report], bytes]:
    """The reports under ``nonce`` in what bash wrote, in order, and the lines that are no reports."""
    if _MARK not in data:
        return [], data
    found, others = [], []
    for line in data.splitlines(keepends=True):
        match = _REPORT.match(line, max(0, line.find(_MARK)))
        if match is None or not line.endswith(b"\n"):
            others.append(line)
        elif match[1] == nonce:
            said, number, values, *prompts, options = match.groups(b"")[1:]
            found.append(Report(_KINDS[said], int(number), tuple(prompts) if values else (), options))
    return found, b"".join(others)


def last_words(messages: bytes) -> bytes:
    """What bash wrote to its standard error, its reports aside, when it ended: an EXIT trap's output."""
    # With `set -x` there is our own line too, and nothing tells where it ends.
    return b"" if b" -- " in messages or b"/dev/null/" in messages else messages


def without_reports(nonce: bytes, stderr: bytes) -> bytes:
    """A dead shell's stderr without our reports: it got them when the command had closed bash's own descriptors."""
    if nonce not in stderr:
        return stderr
    return b"".join(line for line in stderr.splitlines(keepends=True) if nonce not in line)


def fork_failed(words: bytes) -> bool:
    """Whether bash gave up starting a process, for which it takes 15 seconds."""
    return _NO_PROCESS.search(words) is not None


def death_notices(messages: bytes) -> bytes:
    """The lines that tell how programs in the foreground were killed ("Segmentation fault"), as bash words them.

    In PROMPT_COMMAND bash keeps them back until the prompt, and then writes them among its own messages.
    """
    return b"".join(line + b"\n" for line in messages.split(b"\n") if line.removesuffix(b" (core dumped)") in _DEATHS)


def _code_prefix(code: int) -> bytes:
    """What makes ``$?`` be ``code`` when the next command starts, as the left side of a list."""
    if code == 0:
        return b""
    # The left side of || is exempt from `set -e` and the ERR trap. 1 is by far the most frequent and needs no process.
    # A substitution, not a plain subshell, which would be one of the user's jobs; POSIX mode: no function named exit.
    return b"[[ a == b ]] || " if code == 1 else b"_=$(POSIXLY_CORRECT=1; \\exit %d) || " % code


def _run(command: Command) -> bytes:
    """The one bash command that runs the text with its own streams."""
    paths = command.paths
    # The empty substring is there for its offset, an assignment: the first line of the text is line 1. Only here,
    # while the command is being expanded, does bash keep what is assigned to LINENO.
    streams = _HIGH_STREAMS if command.high else b"</dev/null >%s 2>%s"
    streams %= (paths.stdout.encode() + b"${PPID:LINENO=1:0}", paths.stderr.encode())
    name, text = (b"source", command.text) if command.text_in_file else (b"eval", command.text)
    call = _call(name, command.shadowed)
    if call is None:
        # Every name is taken. In POSIX mode special builtins come before functions; it ends before the text begins.
        call = b"POSIXLY_CORRECT=1 \\%s" % name
        text = _LEAVE_POSIX + text
    word = quoted(paths.text.encode() if command.text_in_file else text)
    return b"%s%s -- %s %s" % (_code_prefix(command.previous_code), call, word, streams)


def _call(name: bytes, shadowed: frozenset[int]) -> bytes | None:
    """How to call the builtin ``name`` although functions may have its name; None when every way is closed."""
    if is_free(name, shadowed):
        return b"\\%s" % name
    free = (caller for caller in (b"builtin", b"command") if is_free(caller, shadowed))
    return next((b"\\%s %s" % (caller, name) for caller in free), None)


def _shadow_check(nonce: bytes) -> bytes:
    """Reports each name of ours that is a function. In a subshell, because POSIX mode changes options for good."""
    tests = (
        b"if \\export -nf %s 2>/dev/null; then %s; fi" % (name, _say(nonce, Said.SHADOWED, b"%d" % index))
        for index, name in enumerate(_NAMES)
    )
    return b"; (POSIXLY_CORRECT=1; %s)" % b"; ".join(tests)
