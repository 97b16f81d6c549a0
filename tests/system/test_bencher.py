"""The checks: what they run, in what, and what is left of it."""

from __future__ import annotations

import itertools
import json
import os
import stat
import time
from collections.abc import Iterator

import gevent
import pytest

from grading.bencher import BencherError
from shell.command import Ending
from shell.copying import CopyError
from shell.errors import InvalidArgumentError
from shell.processes import processes_of
from shell.stop import StopSignal
from tests.support.checks import Checks, make_checks, running_checks
from tests.support.toy_task import BROKEN_LINE, FIXED_LINE, TREE
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


@pytest.fixture
def checks(test_users: TestUsers) -> Iterator[Checks]:
    with running_checks(test_users) as checks:
        yield checks


def fix(checks: Checks) -> None:
    """Repair the bug in the agent's tree."""
    fixed = (checks.toy.source / "app.sh").read_text().replace(BROKEN_LINE, FIXED_LINE)
    (checks.toy.source / "app.sh").write_text(fixed)


def script(checks: Checks, text: str) -> None:
    """Make the build run ``text``, a shell script of the agent's."""
    (checks.toy.bench / "scripts/build.sh").write_text("#!/bin/sh\nmkdir -p out; cp app.sh out/app\n. ./agents.sh\n")
    (checks.toy.source / "agents.sh").write_text(text)


def test_an_untouched_tree_builds_and_passes_and_is_vulnerable(checks: Checks) -> None:
    assert checks.build().code == 0
    assert checks.run_poc().code == 1
    assert checks.function_test().code == 0
    assert checks.intent_test().code == 1


def test_a_fixed_tree_passes_every_check(checks: Checks) -> None:
    fix(checks)
    assert [checks.build().code, checks.run_poc().code, checks.run_poc("pocs/two.txt").code] == [0, 0, 0]
    assert [checks.function_test().code, checks.intent_test().code] == [0, 0]


def test_grading_uses_the_clone_and_not_the_agents_tree(checks: Checks) -> None:
    fix(checks)
    assert checks.build(grading=True).code == 0 and checks.run_poc().code == 1
    assert checks.intent_test(grading=True).code == 1


def test_a_poc_before_any_build_is_minus_one(checks: Checks) -> None:
    assert checks.run_poc().code == -1
    checks.build()
    checks.bencher.new_session()
    assert checks.run_poc().code == -1


def test_a_poc_runs_in_the_last_build_also_a_failed_one(checks: Checks) -> None:
    script(checks, "exit 3")
    assert checks.build().code == 3
    assert checks.run_poc().code == 1


@pytest.mark.parametrize(
    "poc",
    ["", "pocs", "pocs/", "pocs/three.txt", "pocs/../pocs/one.txt", "./pocs/one.txt", "/etc/passwd", "diffs/patch.diff",
     "one.txt", "pocs/one.txt\n", "pocs/one.txt\0", "PoCs/one.txt"],
)  # fmt: skip
def test_only_a_path_of_the_metadata_is_a_poc(checks: Checks, poc: str) -> None:
    checks.build()
    with pytest.raises(InvalidArgumentError, match="poc: "):
        checks.run_poc(poc)


def test_a_poc_is_named_absolutely_or_relatively(checks: Checks) -> None:
    checks.build()
    assert checks.run_poc("pocs/one.txt").stdout == checks.run_poc(str(checks.toy.bench / "pocs/one.txt")).stdout


def test_tests_do_not_see_the_build_folder(checks: Checks) -> None:
    script(checks, "echo build >> marks; cat marks")
    assert checks.build().stdout == b"build\n"
    assert b"build\nbuild\n" not in checks.function_test().stdout
    assert checks.run_poc().code == 1


def test_the_agents_tree_is_not_changed_by_a_check(checks: Checks) -> None:
    script(checks, "echo changed > README; rm docs/guide.txt")
    before = {path: path.read_bytes() for path in checks.toy.source.rglob("*") if path.is_file()}
    checks.build()
    checks.intent_test()
    assert before == {path: path.read_bytes() for path in checks.toy.source.rglob("*") if path.is_file()}


def test_scripts_run_as_the_runner_in_a_session_with_its_own_places(checks: Checks) -> None:
    script(checks, "id -u; id -g; echo $HOME $TMPDIR; env | grep SSE_; cat; ls -A $HOME; pwd")
    out = checks.build().stdout.decode().splitlines()
    assert out[:2] == [str(checks.users.runner.uid), str(checks.users.runner.gid)]
    assert out[2].split()[0].startswith(str(checks.root / "runner"))
    assert out[3:-1] == ["cache", "tmp"] and out[-1].endswith("/toy")


def test_the_environment_is_the_images_only(test_users: TestUsers) -> None:
    image = {"PATH": "/usr/bin:/bin", "MARK": "image", "SSE_BENCH_PATH": "/x", "SSE_ADMIN_SOCKET": "/y", "TIMEOUT": "9"}
    with running_checks(test_users, environment=image) as checks:
        script(checks, "env")
        names = {line.split("=", 1)[0] for line in checks.build().stdout.decode().splitlines()}
    assert names - {"PWD", "OLDPWD", "_", "SHLVL"} == {
        "PATH", "MARK", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "XDG_CACHE_HOME", "GOCACHE", "CCACHE_DIR",
    }  # fmt: skip


def test_what_the_task_does_not_have_is_a_clear_error(checks: Checks) -> None:
    config = checks.toy.bench / "config.yaml"
    text = config.read_text().replace("  test: scripts/test.sh\n", "").replace("  run: scripts/run.sh\n", "")
    config.write_text(text.replace("  future_test: diffs/test.diff\n", ""))
    other = make_checks(checks.root, checks.toy, checks.users, fresh=True)
    with pytest.raises(BencherError, match="no test script"):
        other.function_test()
    with pytest.raises(BencherError, match="no test script"):
        other.intent_test()
    with pytest.raises(BencherError, match="no run script"):
        other.run_poc()
    other.bencher.close()


def test_hidden_tests_that_do_not_apply_are_a_git_error(checks: Checks) -> None:
    (checks.toy.source / "tests/hidden.sh").write_text("exit 0\n")
    with pytest.raises(BencherError, match=r"^git apply failed: .*already exists") as caught:
        checks.intent_test()
    assert str(checks.root / "runner") not in str(caught.value)


@pytest.mark.parametrize(
    "hostile",
    [
        "git config apply.whitespace error; git config core.fsmonitor 'touch $HOME/ran'; git config core.autocrlf true",
        "rm -rf .git; git init -q .; echo 'tests/*.sh filter=x' > .gitattributes; git config filter.x.clean 'false'",
        "rm -rf .git; ln -s /etc .git",
        "rm -rf .git; echo 'gitdir: /nowhere' > .git",
        "git config core.worktree /tmp; git config core.bare true",
        "echo '* text eol=crlf' > .gitattributes",
    ],
    ids=["config", "filter", "link", "file", "worktree", "eol"],
)
def test_a_planted_repository_cannot_keep_hidden_tests_out(checks: Checks, hostile: str) -> None:
    assert checks.as_agent(hostile).code == 0
    answer = checks.intent_test()
    assert answer.code == 1 and b"FAILED: tests/hidden.sh" in answer.stdout


def test_hidden_tests_apply_inside_of_another_repository_too(checks: Checks) -> None:
    # Where git finds a repository above, it skips silently what does not belong to it.
    assert os.system(f"git init -q {checks.root}") == 0
    assert b"FAILED: tests/hidden.sh" in checks.intent_test().stdout


def test_special_files_are_noted_at_the_end_of_stderr(checks: Checks) -> None:
    checks.as_agent("mkfifo pipe")
    script(checks, "printf own >&2")
    assert checks.build().stderr == b"own\nssebench: not copied: pipe (named pipe)\n"


def test_a_tree_that_became_a_link_is_refused(checks: Checks) -> None:
    os.rename(checks.toy.source, checks.toy.source.with_name("moved"))
    checks.toy.source.symlink_to("moved")
    with pytest.raises(CopyError, match="could not copy"):
        checks.build()
    assert checks.run_poc().code == -1


def test_time_runs_out_with_a_line_that_names_the_limit(test_users: TestUsers) -> None:
    with running_checks(test_users, timeout_s=0.5) as checks:
        script(checks, "echo early; sleep 60 & sleep 60")
        answer = checks.build()
    assert (answer.code, answer.stdout, answer.ending) == (124, b"early\n", Ending.TIMED_OUT)
    assert answer.stderr == b"ssebench: the script ran longer than 0.5 s (SSE_SCRIPT_TIMEOUT) and was ended\n"


def test_a_stopped_script_keeps_its_output_and_leaves_nothing(checks: Checks) -> None:
    script(checks, "echo early; setsid sleep 60 & sleep 60")
    stop = StopSignal()

    def stop_in_the_middle() -> None:
        while len(processes_of(checks.users.runner)) < 3:  # the script and both sleepers, which come after the words
            gevent.sleep(0.02)
        gevent.sleep(0.3)
        stop.set("its client went away")

    middle = gevent.spawn(stop_in_the_middle)
    answer = checks.build(stop=stop)
    middle.kill()
    assert answer.stdout == b"early\n" and answer.ending is Ending.STOPPED
    assert b"stopped because its client went away" in answer.stderr
    assert processes_of(checks.users.runner) == []


def test_output_is_bounded(checks: Checks) -> None:
    script(checks, "head -c 50000000 /dev/zero | tr '\\0' x")
    assert len(checks.build().stdout) < 1_100_000


@pytest.mark.parametrize(
    "leave",
    ["sleep 60 &", "setsid sleep 60 &", "(setsid sh -c 'trap \"\" TERM; sleep 60' &)", "nohup sleep 60 >/dev/null &"],
)
def test_a_background_process_ends_before_output_is_collected(checks: Checks, leave: str) -> None:
    script(checks, f"{leave}\necho done")
    started = time.monotonic()
    assert checks.build().stdout == b"done\n"
    assert time.monotonic() - started < 10
    assert processes_of(checks.users.runner) == []


def test_files_outside_of_the_session_are_gone_after_a_check(checks: Checks) -> None:
    name = f"ssebench-left-{os.getpid()}"
    script(checks, f"for d in /tmp /var/tmp /dev/shm; do mkdir $d/{name}; echo x > $d/{name}/f; done")
    assert checks.build().code == 0
    assert not [d for d in ("/tmp", "/var/tmp", "/dev/shm") if os.path.lexists(f"{d}/{name}")]


def test_caches_last_for_the_session_and_no_longer(checks: Checks) -> None:
    script(checks, "cat $HOME/mark; echo warm > $HOME/mark; exit 0")
    assert checks.build().stdout == b""
    assert checks.build().stdout == b"warm\n"
    checks.bencher.new_session()
    assert checks.build().stdout == b""


def test_only_the_build_folder_stays(checks: Checks) -> None:
    checks.build()
    checks.run_poc()
    checks.function_test()
    checks.intent_test()
    (session,) = checks.sessions()
    assert len(list(session.iterdir())) == 2
    assert list((checks.root / "runner/trash").iterdir()) == []


def test_a_new_build_replaces_the_last_one(checks: Checks) -> None:
    for _ in range(3):
        checks.build()
    (session,) = checks.sessions()
    assert len(list(session.iterdir())) == 2


def test_each_script_has_a_log_that_only_root_reads(checks: Checks) -> None:
    checks.build()
    checks.run_poc()
    logs = sorted((checks.root / "results/logs").iterdir())
    assert [log.name for log in logs] == ["0001-build.log", "0002-run_poc.log"]
    head = json.loads(logs[1].read_text().splitlines()[0])
    assert head["code"] == 1 and head["check"] == "run_poc" and head["duration_s"] >= 0
    assert "VULNERABLE" in logs[1].read_text()
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in [*logs, logs[0].parent])


def test_a_log_that_cannot_be_written_does_not_fail_the_check(checks: Checks) -> None:
    os.rmdir(checks.root / "results/logs")
    assert checks.build().code == 0


def test_a_new_start_clears_what_a_killed_daemon_left(checks: Checks) -> None:
    checks.build()
    (old,) = checks.sessions()
    again = make_checks(checks.root, checks.toy, checks.users)
    assert not old.exists() and len(again.sessions()) == 1
    assert again.run_poc().code == -1
    assert again.build().code == 0
    again.bencher.close()


def test_a_closed_bencher_leaves_no_session(checks: Checks) -> None:
    checks.build()
    checks.bencher.close()
    assert checks.sessions() == []


def test_others_are_served_while_a_check_runs(test_users: TestUsers) -> None:
    tree = TREE | {f"many/f{number}": "x" * 100 for number in range(2000)}
    beats: list[float] = []

    def beat() -> None:
        while True:
            beats.append(time.monotonic())
            gevent.sleep(0.005)

    with running_checks(test_users, tree=tree) as checks:
        heart = gevent.spawn(beat)
        assert checks.build().code == 0 and checks.function_test().code == 0
        heart.kill()
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 1
