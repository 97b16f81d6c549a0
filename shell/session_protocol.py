"""What the daemon says to its bash, and how bash answers.

Runs as: the daemon; pure text, no descriptors.
Distrusts: everything that comes back: the agent's code runs in the same bash and can write what it likes there.
Promises: any text without NUL reaches bash unchanged and on one line; what asks bash for its state calls no command,
  so no function or alias of the agent's can stand in for it; nothing of it is seen by the command.
Does not promise: a true answer from a bash whose owner wants to lie; he lies to himself.
Checked by: tests/unit/shell/test_session_protocol.py and the conformance cases.

How it works. An interactive bash runs the text in PROMPT_COMMAND before it prompts, and there, unlike at its
prompt, it neither prints "[1] 4711" for a job nor "[1]+ Done" when one ends. So each command is one line that sets
PROMPT_COMMAND to: give the old value back, say "started", run the command's text with its own streams, say the
exit code. A second line says that the prompt was reached; it is all that comes when the text was cut short.

Bash "says" something through a redirection that must fail: it names the file that cannot be opened on its own
standard error. That is no command, so it can be neither shadowed nor traced, and it costs no process.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

# Control characters would be safe raw, but 0x01 and 0x7f have a meaning inside bash. "!" may be history expansion.
_SPECIAL = re.compile(rb"[\x01-\x1f\x7f\\'!]")
_ESCAPES = {bytes([code]): b"\\%03o" % code for code in (*range(1, 32), 127, ord("\\"), ord("'"), ord("!"))}
_ESCAPES[b"\n"] = b"\\n"
_ESCAPES[b"\\"] = b"\\\\"
_ESCAPES[b"'"] = b"\\'"

# Ways to call the builtin eval, the plain one first: the others serve when a function of the agent's has that name.
_EVALS = (b"\\eval", b"\\builtin eval", b"\\command eval")
# Text that could, by itself or through what it reads, define a function named like one of the above.
_MAY_SHADOW = re.compile(rb"eval|builtin|command|source|\.\s")


class Said(enum.Enum):
    """What one line from bash means."""

    STARTED = "s"
    ENDED = "e"
    READY = "r"
    SHADOWED = "f"


@dataclass(frozen=True, slots=True)
class Report:
    """One message of bash's; ``number`` is an exit code, for SHADOWED the index of a name."""

    said: Said
    number: int


def quoted(text: bytes) -> bytes:
    """``text`` as one bash word without a newline, which bash turns back into exactly these bytes."""
    return b"$'" + _SPECIAL.sub(lambda match: _ESCAPES[match[0]], text) + b"'"


def _say(nonce: bytes, said: Said, number: bytes = b"$?") -> bytes:
    # Descriptor 9 is only named: the open fails, so nothing happens to it. (For 0 bash would start a process.)
    # The assignment makes the list succeed, so that neither `set -e` nor an ERR trap sees the failure.
    return b'9<"/dev/null/%s.%s.%s" || _=' % (nonce, said.value.encode(), number)


@dataclass(frozen=True, slots=True)
class Streams:
    """Paths, as bash sees them, that a command's standard output and standard error are opened at."""

    stdout: str
    stderr: str


def command_lines(nonce: bytes, text: bytes, previous_code: int, streams: Streams, shadowed: frozenset[int]) -> bytes:
    """The lines that make bash run ``text`` and report under ``nonce``."""
    body = b"; ".join(
        (
            b"",
            _say(nonce, Said.STARTED),
            b"LINENO=1",  # the first line of ``text`` is line 1
            _code_prefix(previous_code) + _eval(text, streams, shadowed),
            _say(nonce, Said.ENDED),
        )
    )
    check = _shadow_check(nonce) if _MAY_SHADOW.search(text) else b""
    # First of all the old value comes back, spliced in by bash itself: the text sees the PROMPT_COMMAND it knows.
    old = b"PROMPT_COMMAND=${PROMPT_COMMAND+${PROMPT_COMMAND@Q}}"
    return b" PROMPT_COMMAND=%s%s\n %s\n" % (old, quoted(body + check), _say(nonce, Said.READY))


def direct_lines(nonce: bytes, text: bytes, previous_code: int, streams: Streams, shadowed: frozenset[int]) -> bytes:
    """The same without PROMPT_COMMAND, for a shell where that name is read-only; bash then announces its jobs."""
    run = _code_prefix(previous_code) + _eval(text, streams, shadowed)
    return b" %s; %s\n %s\n" % (run, _say(nonce, Said.ENDED), _say(nonce, Said.READY))


def startup_lines(nonce: bytes, setup: bytes) -> bytes:
    """The first lines of a fresh shell: ``setup`` (conf/shell.rc), then a report that it is ready."""
    return b" \\builtin eval %s%s\n %s\n" % (quoted(setup), _shadow_check(nonce), _say(nonce, Said.READY))


def reports(nonce: bytes, data: bytes) -> list[Report]:
    """The reports under ``nonce`` in what bash wrote, in order."""
    pattern = rb"/dev/null/" + nonce + rb"\.([serf])\.(\d{1,3}):"
    return [Report(Said(match[1].decode()), int(match[2])) for match in re.finditer(pattern, data)]


def _code_prefix(code: int) -> bytes:
    """What makes ``$?`` be ``code`` when the next command starts, as the left side of a list."""
    if code == 0:
        return b""
    # The left side of || is exempt from `set -e` and the ERR trap. 1 is by far the most frequent and needs no process.
    return b"[[ a == b ]] || " if code == 1 else b"(\\exit %d) || " % code


def _eval(text: bytes, streams: Streams, shadowed: frozenset[int]) -> bytes:
    call = next((name for index, name in enumerate(_EVALS) if index not in shadowed), None)
    redirections = b"</dev/null >%s 2>%s" % (streams.stdout.encode(), streams.stderr.encode())
    if call is not None:
        return b"%s -- %s %s" % (call, quoted(text), redirections)
    # Every name is taken. In POSIX mode special builtins come before functions; the mode ends before the text begins.
    leave = b"\\unset POSIXLY_CORRECT\n"
    return b"POSIXLY_CORRECT=1 \\eval %s %s" % (quoted(leave + text), redirections)


def _shadow_check(nonce: bytes) -> bytes:
    """Reports each name of ours that is a function. In a subshell, because POSIX mode changes options for good."""
    tests = (
        b"if \\export -nf %s 2>/dev/null; then %s; fi" % (name, _say(nonce, Said.SHADOWED, b"%d" % index))
        for index, name in enumerate((b"eval", b"builtin", b"command"))
    )
    return b"; (POSIXLY_CORRECT=1; %s)" % b"; ".join(tests)
