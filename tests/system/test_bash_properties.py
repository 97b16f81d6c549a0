"""Properties of the agent's shell over generated text and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shell.accounts import Account
from shell.command import run_command
from shell.session import BashSession
from tests.support.shells import bash_session, run, startup_file
from tests.support.users import TestUsers

pytestmark = pytest.mark.users

# One shell serves all examples of a test: that nothing carries over that should not is part of what is tested.
_SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)
_NASTY = st.text("ab'\"\\$`!#%&()[]{}<>|;~*?^ \t\n\r\x01\x03\x04\x1a\x1b\x7fé漢\u2028", max_size=60)


@pytest.fixture
def session(test_users: TestUsers) -> Iterator[BashSession]:
    with bash_session(test_users.agent) as session:
        run(session, "true")
        yield session


@_SETTINGS
@given(text=_TEXT | _NASTY)
def test_any_text_printed_comes_back_equal(session: BashSession, text: str) -> None:
    result = run(session, f"printf %s {shlex.quote(text)}")
    assert (result.code, result.stdout, result.stderr) == (0, text.encode(), b"")


@_SETTINGS
@given(text=_TEXT | _NASTY)
def test_any_text_in_a_here_document_comes_back_equal(session: BashSession, text: str) -> None:
    result = run(session, f"cat >&2 <<'end of text'\n{text}\nend of text")
    assert (result.code, result.stdout, result.stderr) == (0, b"", text.encode() + b"\n")


@_SETTINGS
@given(data=st.binary(max_size=300))
def test_any_bytes_printed_arrive(session: BashSession, data: bytes) -> None:
    octal = "".join(f"\\{byte:03o}" for byte in data)
    assert run(session, f"printf '{octal}'").stdout == data


@_SETTINGS
@given(text=_NASTY)
def test_whatever_a_command_is_the_next_one_works(session: BashSession, text: str) -> None:
    # In a directory that cannot be written, with a limit: the text may be any program.
    run(session, f"cd /proc; {text}", timeout_s=1.0)
    result = run(session, "/bin/echo next; (exit 5)")
    assert (result.code, result.stdout) == (5, b"next\n")


_NAMES = st.sampled_from(["a", "b", "c"])
_WORDS = st.sampled_from(["1", "x y", "it's", 'say "hi"', "$a", "a\\b", "é", "*", "", "-n", "a;b", "a\nb"]).map(
    shlex.quote
)
_DIRECTORIES = st.sampled_from(["/", "/usr", "/usr/bin", "..", ".", "-", "/no/such", "~"])
_COMMANDS = st.one_of(
    st.builds("cd {}".format, _DIRECTORIES),
    st.builds("pushd {} >/dev/null".format, _DIRECTORIES),
    st.builds("{}={}".format, _NAMES, _WORDS),
    st.builds("export {}={}".format, _NAMES, _WORDS),
    st.builds("unset {}".format, _NAMES),
    st.builds("{}+={}".format, _NAMES, _WORDS),
    st.builds("declare -a {}=({} {})".format, st.just("list"), _WORDS, _WORDS),
    st.builds('f_{}() {{ echo {} "$1"; }}'.format, _NAMES, _WORDS),
    st.builds("f_{} arg".format, _NAMES),
    st.builds("unset -f f_{}".format, _NAMES),
    st.builds("alias al_{}='echo {}'".format, _NAMES, st.sampled_from(["one", "two  three"])),
    st.builds("unalias al_{}".format, _NAMES),
    st.builds("al_{} more".format, _NAMES),
    st.builds("umask {}".format, st.sampled_from(["022", "077", "u=rwx,g=,o="])),
    st.builds("set {}f; set -- {}".format, st.sampled_from("+-"), _WORDS),
    st.builds("shopt -{} nullglob".format, st.sampled_from("su")),
    st.builds("(exit {})".format, st.integers(0, 255)),
    st.just('echo $? $#; echo "$@"'),
)
_DUMP = """
echo "$? $PWD $OLDPWD $#"; declare -p a b c list; declare -f f_a f_b f_c; alias; umask; set +o | grep glob
shopt nullglob; dirs; export -p | grep -E ' (a|b|c)='
"""


@settings(parent=_SETTINGS, max_examples=60)
@given(commands=st.lists(_COMMANDS, min_size=1, max_size=12))
def test_commands_leave_the_state_they_leave_in_a_plain_bash(test_users: TestUsers, commands: list[str]) -> None:
    with startup_file(test_users.agent, ""), bash_session(test_users.agent) as session:
        answers = [run(session, command) for command in commands]
        dump = run(session, _DUMP).stdout
    assert b"".join(answer.stdout for answer in answers) + dump == _in_plain_bash(test_users.agent, [*commands, _DUMP])


def _in_plain_bash(agent: Account, commands: list[str]) -> bytes:
    """What the same text prints in a bash that reads it as a script."""
    script = "shopt -s expand_aliases\n" + "\n".join(commands)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": agent.home}
    argv = ["/bin/bash", "--norc", "-c", script]
    return run_command(argv, account=agent, cwd="/", env=env, limit_bytes=1 << 20, timeout_s=30.0).stdout
