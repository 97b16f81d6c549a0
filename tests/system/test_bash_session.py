"""The agent's shell: limits, speed of others, start-up files, and what is left when it is gone."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import gevent
import pytest

import shell.session_shell
from shell.command import Ending, run_command
from shell.errors import CommandError
from shell.processes import end_processes, processes_of
from shell.session import RESTARTED
from shell.stop import StopSignal
from tests.support.shells import bash_session, run, startup_file
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


def test_nothing_is_started_before_the_first_command(test_users: TestUsers) -> None:
    before = processes_of(test_users.agent)
    with bash_session(test_users.agent):
        assert processes_of(test_users.agent) == before


def test_close_ends_everything_and_the_session_can_be_used_again(test_users: TestUsers) -> None:
    with bash_session(test_users.agent) as session:
        run(session, "sleep 60 & nohup sleep 61 >/dev/null 2>&1 & (setsid sleep 62 &); trap '' TERM HUP INT")
        session.close()
        assert processes_of(test_users.agent) == []
        session.close()
        assert run(session, "echo again").stdout == b"again\n"


def test_close_ends_what_a_dead_shell_left_behind(test_users: TestUsers) -> None:
    with bash_session(test_users.agent) as session:
        run(session, "sleep 60 & disown; exit 3")
        assert len(processes_of(test_users.agent)) == 1
    assert processes_of(test_users.agent) == []


def test_jobs_survive_the_exit_of_their_shell(test_users: TestUsers) -> None:
    with bash_session(test_users.agent) as session:
        run(session, "(sleep 0.3; echo late) & exit 3")
        assert run(session, "sleep 0.8").stdout == b"late\n"


@pytest.mark.parametrize("size", [1000, 1001, 100_000])
def test_output_above_the_limit_keeps_both_ends(test_users: TestUsers, size: int) -> None:
    with bash_session(test_users.agent, limit_bytes=1000) as session:
        text = run(session, f"head -c {size} /dev/zero | tr '\\0' x").stdout.decode()
    if size <= 1000:
        assert text == "x" * size
        return
    head, gap, tail = text.split("\n")
    assert (head, tail) == ("x" * 500, "x" * 500)
    assert str(size - 1000) in gap


def test_two_gigabytes_of_output_do_not_grow_the_daemon(test_users: TestUsers) -> None:
    limit = 1 << 20
    with bash_session(test_users.agent, limit_bytes=limit) as session:
        run(session, "true")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = run(session, "head -c 2147483648 /dev/zero; echo end")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert result.code == 0
    assert result.stdout.endswith(b"\0end\n")
    assert grown * 1024 <= 6 * limit


def test_many_tiny_writes_do_not_grow_the_daemon(test_users: TestUsers) -> None:
    with bash_session(test_users.agent, limit_bytes=1 << 16) as session:
        result = run(session, "python3 -c 'import os\nfor i in range(200000): os.write(1, b\"x\")'")
    assert len(result.stdout) < (1 << 16) + 200


def test_others_get_their_turn_while_a_command_prints(test_users: TestUsers) -> None:
    gaps: list[float] = []

    def watch() -> None:
        while True:
            started = time.monotonic()
            gevent.sleep(0.001)
            gaps.append(time.monotonic() - started)

    watcher = gevent.spawn(watch)
    with bash_session(test_users.agent, limit_bytes=1 << 20) as session:
        run(session, "yes", timeout_s=1.0)
    watcher.kill()
    assert len(gaps) > 20


def test_a_stopped_command_ends_like_at_a_timeout_and_the_state_stays(test_users: TestUsers) -> None:
    stop = StopSignal()
    with bash_session(test_users.agent) as session:
        run(session, "x=5")
        gevent.spawn_later(0.2, stop.set, "the client went away")
        started = time.monotonic()
        result = session.execute("echo part; sleep 60", timeout_s=None, stop=stop)
        assert time.monotonic() - started < 5
        assert (result.ending, result.stdout) == (Ending.STOPPED, b"part\n")
        assert result.stderr == b"ssebench: the command was stopped because the client went away\n"
        assert run(session, "echo $x").stdout == b"5\n"


def test_no_shell_is_started_once_the_command_was_stopped(test_users: TestUsers) -> None:
    stop = StopSignal()
    stop.set("the agent phase has ended")
    with bash_session(test_users.agent) as session:
        with pytest.raises(CommandError, match="the agent phase has ended"):
            session.execute("true", timeout_s=None, stop=stop)
        assert processes_of(test_users.agent) == []
        assert run(session, "echo later").stdout == b"later\n"


def test_the_end_of_all_of_the_agents_processes_ends_the_command(test_users: TestUsers) -> None:
    with bash_session(test_users.agent) as session:
        run(session, "true")  # a shell that only starts when they all are ended is another matter
        gevent.spawn_later(0.3, end_processes, test_users.agent)
        started = time.monotonic()
        result = run(session, "echo part; sleep 60; echo never")
        assert time.monotonic() - started < 5
        assert (result.code, result.stdout) == (137, b"part\n")
        assert processes_of(test_users.agent) == []


def test_the_sessions_own_limit_caps_the_requests(test_users: TestUsers) -> None:
    with bash_session(test_users.agent, timeout_s=0.3) as session:
        assert run(session, "sleep 60", timeout_s=50.0).code == 124
        assert run(session, "sleep 60").stderr.endswith(b"time limit of 0.3 seconds\n")


@pytest.mark.parametrize(
    "text",
    [
        "exit 0",
        "set -u\nalias cd='echo no'\nPROMPT_COMMAND='echo hook'",
        "set -e; false",
        "exec sleep 0",
        "exec >/dev/null 2>&1",
        "exec 2>/dev/null",
        "kill -9 $$",
        "read -r x; read -r y </dev/tty",
        "builtin() { echo no; }; eval() { echo no; }",
        "set -x",
        "shopt -u expand_aliases; set +m; set -o history; set -H",
        "echo )",
        "trap 'echo bye' EXIT; trap 'true' DEBUG",
        "set -o vi",
        "readonly LINENO",
        "enable -n eval source",
        "exec bash --norc",
        "declare -u PROMPT_COMMAND",
    ],
)
def test_no_startup_file_keeps_the_shell_from_answering(test_users: TestUsers, text: str) -> None:
    with startup_file(test_users.agent, text + "\n"), bash_session(test_users.agent) as session:
        result = run(session, "echo out; (exit 4)")
        assert (result.code, result.stdout) == (4, b"out\n")
        assert RESTARTED not in result.stderr
        assert run(session, "/bin/echo $?").stdout == b"4\n"


@pytest.mark.parametrize("direct", [False, True], ids=["prompt command", "prompt"])
def test_a_question_that_bash_lost_is_asked_again(
    test_users: TestUsers, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    # An interrupt while bash reads the line makes it forget it.
    name = "direct_lines" if direct else "command_lines"
    lines = getattr(shell.session_shell, name)
    with bash_session(test_users.agent) as session:
        run(session, "x=1")
        monkeypatch.setattr(shell.session_shell, name, lambda *what: lines(*what).partition(b"\n")[0] + b"\n")
        text = ": ${HOME#(}; echo $x; (exit 3)" if direct else "echo $x; (exit 3)"
        ended = run(session, text)
        stopped = run(session, text.replace("echo", "sleep 60; echo"), timeout_s=0.3)
        monkeypatch.undo()
        assert (ended.code, ended.stdout, ended.stderr) == (3, b"1\n", b"")
        assert stopped.code == 124 and RESTARTED not in stopped.stderr
        assert run(session, "echo $x").stdout == b"1\n"


def test_a_startup_file_is_read_once_and_in_full(test_users: TestUsers) -> None:
    text = "export COUNT=x$COUNT\nf() { echo from rc; }\n"
    with startup_file(test_users.agent, text), bash_session(test_users.agent) as session:
        assert run(session, "echo $COUNT; f").stdout == b"x\nfrom rc\n"


def test_no_exit_code_is_lost_while_a_script_forks(test_users: TestUsers) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    argv = ["/bin/sh", "-c", "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done; exit 7"]

    def script() -> int:
        result = run_command(argv, account=test_users.runner, cwd="/", env=env, limit_bytes=1000, timeout_s=100.0)
        return result.code

    forking = [gevent.spawn(script) for _ in range(2)]
    with bash_session(test_users.agent) as session:
        for number in range(500):
            wanted = number % 256
            assert run(session, f"sh -c 'exit {wanted}'").code == wanted
        for number in range(20):
            assert run(session, f"exit {number}").code == number
    gevent.joinall(forking)
    assert [job.value for job in forking] == [7, 7]


def test_the_text_of_a_command_is_read_by_the_agent_alone(test_users: TestUsers) -> None:
    with bash_session(test_users.agent) as session:
        run(session, "jobs # this text goes through a file")
        folders = [path for path in Path("/run").glob("bash-io-*") if (path / "command").exists()]
        assert folders
        for folder in folders:
            assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (0, 0o711)
            command = (folder / "command").stat()
            assert (command.st_uid, command.st_mode & 0o777) == (0, 0o640)
        assert b"Permission denied" in run(session, f"rm -f {folders[0]}/out; ln -s /etc/passwd {folders[0]}/x").stderr


def test_a_source_directory_that_is_gone_does_not_keep_the_shell_away(test_users: TestUsers) -> None:
    with bash_session(test_users.agent, source="/no/such/directory") as session:
        assert run(session, "pwd").stdout.decode() == test_users.agent.home + "\n"


def test_descriptors_do_not_pile_up(test_users: TestUsers) -> None:
    with bash_session(test_users.agent) as session:
        run(session, "true")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            run(session, "exit 1")
            run(session, "true")
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_daemons_descriptors_stay_with_the_daemon(test_users: TestUsers) -> None:
    with open("/etc/hostname") as secret, bash_session(test_users.agent) as session:
        os.set_inheritable(secret.fileno(), True)
        listing = run(session, "ls -l /proc/$$/fd /proc/self/fd").stdout
    assert b"/etc/hostname" not in listing
