"""What a user leaves in places that all users share is removed, and nothing else."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shell import cleaner
from shell.accounts import Account
from shell.cleaning import CleaningError, SharedPlaces, empty_directory, remove_jobs
from shell.processes import end_processes
from shell.programs import program_argv
from tests.support.checks import as_user
from tests.support.live import scratch
from tests.support.users import TestUsers

pytestmark = pytest.mark.users

MAKE_IPC = """
import ctypes
libc = ctypes.CDLL(None)
assert libc.shmget(0, 4096, 0o1666) >= 0
assert libc.semget(0, 1, 0o1666) >= 0
assert libc.msgget(0, 0o1666) >= 0
"""
MAKE_QUEUE = """
import ctypes, os, sys
librt = ctypes.CDLL("librt.so.1", use_errno=True)
assert librt.mq_open(sys.argv[1].encode(), os.O_CREAT | os.O_RDWR, 0o666, None) >= 0, ctypes.get_errno()
"""
HAS_QUEUE = """
import ctypes, os, sys
sys.exit(0 if ctypes.CDLL("librt.so.1").mq_open(sys.argv[1].encode(), os.O_RDONLY) < 0 else 1)
"""


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no other test uses, and whose files are gone afterwards."""
    name = f"ssebench-test-{secrets.token_hex(6)}"
    yield name
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        subprocess.run(["rm", "-rf", f"{place}/{name}"], check=True)


def left(name: str) -> list[str]:
    return [place for place in ("/tmp", "/var/tmp", "/dev/shm") if os.path.lexists(f"{place}/{name}")]


def python(account: Account, program: str, *arguments: str) -> int:
    argv = ["/usr/bin/python3", "-I", "-S", "-c", program, *arguments]
    return subprocess.run(argv, user=account.uid, group=account.gid, extra_groups=[], check=False).returncode


@pytest.mark.parametrize(
    "make",
    [
        "echo x > {}",
        "mkdir -p {0}/a/b; echo x > {0}/a/b/c",
        "mkdir -p {0}/a; echo x > {0}/a/f; chmod 0 {0}/a {0}",
        "mkfifo {}",
        "ln -s /etc {}",
        "mkdir {0}; ln -s /etc {0}/etc; ln -s / {0}/root",
        'mkdir {0}; cd {0}; python3 -c \'import os; [(os.mkdir("d"), os.chdir("d")) for _ in range(1000)]\'',
        "mkdir {0}; chmod 1777 {0}; mkdir {0}/sub; chmod 555 {0}/sub",
        "mkdir {0}; cd {0}; touch -- -rf '*' $'a\\nb' $'\\377' .removed-1-0",
    ],
    ids=["file", "tree", "closed", "fifo", "link", "links", "deep", "read-only", "odd names"],
)
@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm"])
def test_files_in_shared_places_are_removed(test_users: TestUsers, name: str, place: str, make: str) -> None:
    assert as_user(test_users.runner, make.format(f"{place}/{name}")).code == 0
    assert left(name)
    SharedPlaces().purge(test_users.runner)
    assert not left(name)
    assert os.path.isdir("/etc") and os.path.exists("/etc/passwd")


def test_files_of_others_stay(test_users: TestUsers, name: str) -> None:
    as_user(test_users.agent, f"mkdir -m 777 /tmp/{name}; echo x > /tmp/{name}/agents")
    Path(f"/var/tmp/{name}").write_text("root's")
    SharedPlaces().purge(test_users.runner)
    assert Path(f"/tmp/{name}/agents").exists() and Path(f"/var/tmp/{name}").exists()
    Path(f"/var/tmp/{name}").unlink()


def test_files_in_another_users_open_directory_are_removed(test_users: TestUsers, name: str) -> None:
    as_user(test_users.agent, f"mkdir -p /tmp/{name}/in; chmod 777 /tmp/{name} /tmp/{name}/in; echo x > /tmp/{name}/a")
    as_user(test_users.runner, f"echo x > /tmp/{name}/r; echo x > /tmp/{name}/in/r")
    SharedPlaces().purge(test_users.runner)
    assert sorted(os.listdir(f"/tmp/{name}")) == ["a", "in"] and os.listdir(f"/tmp/{name}/in") == []


def test_what_others_put_into_the_users_directory_does_not_save_it(test_users: TestUsers, name: str) -> None:
    as_user(test_users.runner, f"mkdir -m 777 /tmp/{name}")
    as_user(test_users.agent, f"mkdir -m 700 /tmp/{name}/agents; echo x > /tmp/{name}/agents/file")
    SharedPlaces().purge(test_users.runner)
    assert not left(name)


def test_what_is_to_be_kept_stays_with_the_way_to_it(test_users: TestUsers, name: str) -> None:
    as_user(test_users.agent, f"mkdir -p /tmp/{name}/src/deep; touch /tmp/{name}/src/deep/f /tmp/{name}/other")
    SharedPlaces(test_users.agent, keep=[f"/tmp/{name}/src"]).purge(test_users.agent)
    assert os.listdir(f"/tmp/{name}") == ["src"] and Path(f"/tmp/{name}/src/deep/f").exists()


@pytest.mark.parametrize("make", ["echo x > {}", "ln -s /etc {}", "mkfifo {}"], ids=["file", "link", "fifo"])
def test_what_is_no_directory_is_not_kept_in_the_place_of_one(test_users: TestUsers, name: str, make: str) -> None:
    as_user(test_users.agent, make.format(f"/tmp/{name}"))
    SharedPlaces(test_users.agent, keep=[f"/tmp/{name}"]).purge(test_users.agent)
    assert not left(name)


def test_a_directory_of_the_runners_is_not_kept_in_the_place_of_the_agents(test_users: TestUsers, name: str) -> None:
    as_user(test_users.runner, f"mkdir -m 777 /tmp/{name}; echo x > /tmp/{name}/file")
    places = SharedPlaces(test_users.agent, keep=[f"/tmp/{name}"])
    places.purge(test_users.agent)
    assert left(name)
    places.purge(test_users.runner)
    assert not left(name)


def test_a_link_that_takes_a_directorys_place_leads_nowhere(test_users: TestUsers, name: str) -> None:
    with scratch() as root:
        (root / "precious").mkdir()
        (root / "precious/file").write_text("x")
        os.chown(root / "precious", test_users.runner.uid, test_users.runner.gid)
        as_user(test_users.runner, f"mkdir /tmp/{name}; ln -s {root}/precious /tmp/{name}/dir")
        SharedPlaces().purge(test_users.runner)
        assert not left(name) and (root / "precious/file").exists()


def test_system_v_ipc_is_removed(test_users: TestUsers) -> None:
    assert python(test_users.runner, MAKE_IPC) == 0
    kinds = {"shm": "shmid", "sem": "semid", "msg": "msqid"}
    assert all(list(cleaner.ipc_ids(kind, column, test_users.runner.uid)) for kind, column in kinds.items())
    SharedPlaces().purge(test_users.agent)
    assert all(list(cleaner.ipc_ids(kind, column, test_users.runner.uid)) for kind, column in kinds.items())
    SharedPlaces().purge(test_users.runner)
    assert not any(list(cleaner.ipc_ids(kind, column, test_users.runner.uid)) for kind, column in kinds.items())


def test_posix_message_queues_are_removed(test_users: TestUsers, name: str) -> None:
    if python(test_users.runner, MAKE_QUEUE, f"/{name}") != 0:
        pytest.skip("this kernel has no POSIX message queues")
    assert python(test_users.runner, HAS_QUEUE, f"/{name}") == 1
    SharedPlaces().purge(test_users.runner)
    assert python(test_users.runner, HAS_QUEUE, f"/{name}") == 0


def test_whoever_purges_is_told_that_something_may_be_left(
    test_users: TestUsers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(test_users.agent, f"touch /tmp/{name}")
    monkeypatch.setattr("shell.cleaning._CLEAN_SECONDS", 0.001)
    with pytest.raises(CleaningError, match=f"all that {test_users.agent.name} left"):
        SharedPlaces().purge(test_users.agent)
    monkeypatch.undo()
    SharedPlaces().purge(test_users.agent)
    assert not left(name)


def test_a_directory_with_more_names_than_memory_is_removed(test_users: TestUsers, name: str) -> None:
    make = f"import os; os.mkdir('/tmp/{name}'); os.chdir('/tmp/{name}')\n"
    make += "for number in range(150_000): os.close(os.open(f'{number:0250d}', os.O_CREAT | os.O_WRONLY))"
    assert python(test_users.runner, make) == 0
    argv = program_argv("cleaner", "purge", str(test_users.runner.uid), "/tmp", "--")
    # All the names at once would take more.
    limit = ["/usr/bin/prlimit", f"--as={64 << 20}"]
    done = subprocess.run([*limit, *argv], user=test_users.runner.uid, check=False, capture_output=True)
    assert done.returncode == 0, done
    assert not left(name)


def test_crontab_and_at_jobs_are_removed_others_stay(test_users: TestUsers) -> None:
    spool = Path("/var/spool/cron/crontabs")
    made = not spool.exists()
    spool.mkdir(parents=True, exist_ok=True)
    jobs = Path("/var/spool/cron/atjobs")
    made_jobs = not jobs.exists()
    jobs.mkdir(exist_ok=True)
    (spool / test_users.agent.name).write_text("* * * * * true\n")
    (spool / "somebody-else").write_text("* * * * * true\n")
    (jobs / "a0001").write_text("true\n")
    os.chown(jobs / "a0001", test_users.agent.uid, test_users.agent.gid)
    try:
        remove_jobs(test_users.agent)
        assert sorted(os.listdir(spool)) == ["somebody-else"] and os.listdir(jobs) == []
    finally:
        (spool / "somebody-else").unlink()
        for folder, ours in ((jobs, made_jobs), (spool, made)):
            if ours:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def test_the_scan_finds_what_an_image_shares(test_users: TestUsers, name: str) -> None:
    with scratch() as root:
        (root / "open").mkdir()
        (root / "open").chmod(0o1777)
        as_user(test_users.runner, f"echo x > {root}/open/{name}")
        places = SharedPlaces()
        places.start_scan()
        places.purge(test_users.runner, everywhere=True)
        assert os.listdir(root / "open") == []
        places.close()


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_search_that_fails_is_made_again_when_all_must_be_found(
    test_users: TestUsers, name: str, monkeypatch: pytest.MonkeyPatch, everywhere: bool
) -> None:
    with scratch() as root:
        (root / "open").mkdir()
        (root / "open").chmod(0o1777)
        as_user(test_users.runner, f"echo x > {root}/open/{name}")
        places = SharedPlaces()
        with monkeypatch.context() as patched:
            patched.setattr("shell.cleaning._SCAN_SECONDS", 0.001)
            places.start_scan()
            if everywhere:
                with pytest.raises(CleaningError, match="did not end within"):
                    places.purge(test_users.runner, everywhere=True)
        places.purge(test_users.runner, everywhere=True)
        assert os.listdir(root / "open") == []
        places.close()


def test_a_tree_is_emptied_with_its_owners_rights_and_then_roots(test_users: TestUsers) -> None:
    with scratch() as root:
        top = root / "top"
        top.mkdir()
        os.chown(top, test_users.runner.uid, test_users.runner.gid)
        as_user(
            test_users.runner, f"cd {top}; mkdir -m 777 shared; mkdir -m 0 closed; for i in 1 2 3; do mkdir $i; done"
        )
        as_user(test_users.agent, f"mkdir -m 700 {top}/shared/agents; echo x > {top}/shared/agents/f")
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert empty_directory(fd, test_users.runner)
        finally:
            os.close(fd)
        assert os.listdir(top) == []


def test_the_program_says_what_is_left(test_users: TestUsers) -> None:
    with scratch() as root:
        (root / "roots").mkdir(mode=0o755)
        (root / "roots/file").write_text("x")
        fd = os.open(root, os.O_RDONLY)
        try:
            argv = program_argv("cleaner", "empty", str(fd))
            done = subprocess.run(argv, pass_fds=[fd], user=test_users.runner.uid, check=False, capture_output=True)
        finally:
            os.close(fd)
        assert done.returncode == 3 and (root / "roots/file").exists(), done


def test_no_process_of_the_user_is_left_by_a_purge(test_users: TestUsers) -> None:
    SharedPlaces().purge(test_users.runner)
    end_processes(test_users.runner)
