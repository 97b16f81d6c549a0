"""The end of the agent phase: complete, for good, and remembered."""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from grading.bencher import BencherError
from grading.phase import AgentPhase
from grading.state import RunState, open_state
from shell.accounts import child_setup
from shell.cleaning import CleaningError
from shell.errors import ProcessesLeftError
from shell.processes import end_processes, processes_of
from tests.support.checks import Checks, as_user, make_checks, running_checks
from tests.support.live import scratch
from tests.support.users import TestUsers

pytestmark = pytest.mark.users


@pytest.fixture
def place(test_users: TestUsers) -> Iterator[Path]:
    """A directory with the agent's ``src`` and ``archive``."""
    with scratch() as root:
        for name in ("src", "archive"):
            (root / name).mkdir(mode=0o755)
            os.chown(root / name, test_users.agent.uid, test_users.agent.gid)
        yield root
        end_processes(test_users.agent)


def state_of(place: Path) -> RunState:
    return open_state(str(place / "state"), task_id="t", source="/s", fresh=False)


def phase_of(place: Path, users: TestUsers) -> AgentPhase:
    return AgentPhase(state_of(place), users.agent, [str(place / "src"), str(place / "archive")])


def start(users: TestUsers, script: str) -> subprocess.Popen[bytes]:
    argv = ["/bin/bash", "-c", script]
    process = subprocess.Popen(argv, preexec_fn=child_setup(users.agent, "/"), stdin=subprocess.DEVNULL)
    gevent.sleep(0.2)
    return process


def test_no_process_of_the_agents_is_left(place: Path, test_users: TestUsers) -> None:
    process = start(test_users, "trap '' TERM; setsid sleep 60 & sleep 60 & kill -STOP $!; sleep 60")
    phase = phase_of(place, test_users)
    started = time.monotonic()
    phase.end()
    assert time.monotonic() - started < 5 and processes_of(test_users.agent) == []
    assert process.wait() == -9


def test_the_daemon_the_runner_and_others_are_untouched(place: Path, test_users: TestUsers) -> None:
    runner = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=child_setup(test_users.runner, "/"))
    phase_of(place, test_users).end()
    assert runner.poll() is None
    end_processes(test_users.runner)
    runner.wait()


def test_it_is_remembered_by_the_next_start(place: Path, test_users: TestUsers) -> None:
    assert not phase_of(place, test_users).ended
    phase_of(place, test_users).end()
    assert phase_of(place, test_users).ended


def test_the_mark_is_on_the_disk_before_the_first_kill(
    place: Path, test_users: TestUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr("grading.phase.end_processes", lambda account: seen.append(state_of(place).phase_ended()))
    phase_of(place, test_users).end()
    assert seen and all(seen)


def test_it_counts_as_ended_while_it_ends(place: Path, test_users: TestUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    phase = phase_of(place, test_users)
    seen: list[bool] = []
    monkeypatch.setattr(RunState, "mark_phase_ended", lambda state: seen.append(phase.ended))
    phase.end()
    assert seen == [True]


def test_calling_it_again_has_no_effect(place: Path, test_users: TestUsers) -> None:
    phase = phase_of(place, test_users)
    phase.end()
    process = start(test_users, "sleep 60")
    phase.end()
    assert process.poll() is None
    process.kill()
    process.wait()


def test_calls_at_the_same_time_end_together(place: Path, test_users: TestUsers) -> None:
    phase = phase_of(place, test_users)
    calls = [gevent.spawn(phase.end) for _ in range(5)]
    gevent.joinall(calls, raise_error=True, timeout=20)
    assert all(call.successful() for call in calls)


def test_after_a_failure_it_stays_ended_and_tries_again(
    place: Path, test_users: TestUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(account: object) -> None:
        raise ProcessesLeftError("agent", [1234])

    phase = phase_of(place, test_users)
    with monkeypatch.context() as patched:
        patched.setattr("grading.phase.end_processes", fail)
        with pytest.raises(ProcessesLeftError, match="1234"):
            phase.end()
    assert phase.ended
    process = start(test_users, "sleep 60")
    phase.end()
    assert process.wait() == -9


def test_the_agents_directories_are_closed_to_others(place: Path, test_users: TestUsers) -> None:
    (place / "src/file").write_text("x")
    assert as_user(test_users.runner, f"cat {place}/src/file").code == 0
    phase_of(place, test_users).end()
    assert as_user(test_users.runner, f"cat {place}/src/file").code != 0
    assert as_user(test_users.runner, f"ls {place}/archive").code != 0
    assert as_user(test_users.agent, f"cat {place}/src/file").code == 0


def test_a_link_in_a_directorys_place_changes_nothing_elsewhere(place: Path, test_users: TestUsers) -> None:
    (place / "src").rmdir()
    (place / "other").mkdir(mode=0o755)
    os.chown(place / "other", test_users.agent.uid, test_users.agent.gid)
    (place / "src").symlink_to(place / "other")
    phase_of(place, test_users).end()
    assert stat.S_IMODE((place / "other").stat().st_mode) == 0o755


def test_a_directory_of_somebody_else_keeps_its_mode(place: Path, test_users: TestUsers) -> None:
    os.chown(place / "src", test_users.runner.uid, test_users.runner.gid)
    (place / "archive").rmdir()
    phase_of(place, test_users).end()
    assert stat.S_IMODE((place / "src").stat().st_mode) == 0o755


def test_the_agents_files_in_shared_places_are_removed_its_tree_is_not(test_users: TestUsers) -> None:
    name = f"/tmp/ssebench-test-{secrets.token_hex(6)}"
    as_user(test_users.agent, f"mkdir -p {name}/src {name}/archive; echo x > {name}/src/f; echo x > {name}/plan")
    try:
        with scratch() as root:
            state = open_state(str(root / "state"), task_id="t", source="/s", fresh=False)
            phase = AgentPhase(state, test_users.agent, [f"{name}/src", f"{name}/archive"])
            phase.end()
            phase.clean()
        assert sorted(os.listdir(name)) == ["archive", "src"] and os.path.exists(f"{name}/src/f")
    finally:
        subprocess.run(["rm", "-rf", name], check=True)


@pytest.fixture
def checks(test_users: TestUsers) -> Iterator[Checks]:
    with running_checks(test_users) as checks:
        yield checks


def test_what_could_not_be_removed_is_never_graded_over(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"/tmp/ssebench-test-{secrets.token_hex(6)}"
    checks.as_agent(f"touch {name}")
    with monkeypatch.context() as patched:
        patched.setattr("shell.cleaning._CLEAN_SECONDS", 0.001)
        checks.phase.end()
        with pytest.raises(CleaningError, match="left in shared places"):
            checks.bencher.new_session()
        with pytest.raises(BencherError, match="no runner session"):
            checks.build(grading=True)
    checks.bencher.new_session()
    assert checks.build(grading=True).code == 0 and not os.path.lexists(name)


def test_what_a_check_links_while_the_phase_ends_is_removed_too(checks: Checks) -> None:
    checks.phase.end()
    # The end has been through; a hard link to a file of the agent's, made by a build, is a file of the agent's.
    checks.phase.clean()
    name = f"/tmp/ssebench-test-{secrets.token_hex(6)}"
    checks.as_agent(f"touch {name}")
    checks.bencher.new_session()
    assert not os.path.lexists(name)


def test_a_process_that_began_while_the_phase_ended_is_ended_before_grading(checks: Checks) -> None:
    checks.phase.end()
    process = start(checks.users, "sleep 60")
    checks.bencher.new_session()
    assert process.wait(timeout=5) == -9


def test_a_start_after_the_end_ends_what_was_left(checks: Checks) -> None:
    checks.phase.end()
    process = start(checks.users, "sleep 60")
    again = make_checks(checks.root, checks.toy, checks.users)
    assert again.phase.ended and process.wait() == -9
    again.bencher.close()


def test_a_start_after_an_end_that_was_cut_short_removes_what_that_left(checks: Checks) -> None:
    # Shared by this system only, so found by looking for it.
    public = checks.root / "public"
    public.mkdir()
    public.chmod(0o777)
    as_user(checks.users.agent, f"echo x > {public}/plan")
    state = open_state(str(checks.root / "state"), task_id="toy-1", source=str(checks.toy.source), fresh=False)
    assert state.resumed
    state.mark_phase_ended()
    again = make_checks(checks.root, checks.toy, checks.users)
    assert again.phase.ended and os.listdir(public) == []
    again.bencher.close()


def test_checks_still_run_for_the_grader(checks: Checks) -> None:
    checks.phase.end()
    checks.bencher.new_session()
    assert checks.build(grading=True).code == 0 and checks.function_test(grading=True).code == 0
