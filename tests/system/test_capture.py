"""The capture beside the cases: shared runs, live trees, helpers that are killed or stopped, limits."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import gevent
import pytest

import grading.objects
import shell.reader
from grading import paths
from grading.capture import Capture
from grading.treeview import CaptureError, TreeView
from shell.processes import processes_of
from shell.reader import ReaderProcess, ReadRequest, ReadSink
from tests.support.roundtrip import World, as_agent, differences, fingerprint, snapshot

pytestmark = pytest.mark.users


def readers_of(world: World) -> list[int]:
    return processes_of(world.agent)


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every look at the tree from now on, by its time."""
    runs: list[float] = []
    refresh = TreeView.refresh

    def counted(view: TreeView) -> None:
        runs.append(time.monotonic())
        refresh(view)

    monkeypatch.setattr(TreeView, "refresh", counted)
    return runs


def test_captures_at_the_same_time_share_one_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()
        as_agent("echo x >> README", world.source)
        runs = count_runs(monkeypatch)
        calls = [gevent.spawn(capture.diff if i % 2 else capture.files) for i in range(20)]
        gevent.joinall(calls, raise_error=True)
        assert len(runs) == 1
        assert len({call.value for call in calls if isinstance(call.value, bytes)}) == 1


def test_a_call_never_gets_a_run_that_began_before_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = TreeView.refresh

    def slow(view: TreeView) -> None:
        refresh(view)
        gevent.sleep(0.2)

    with world.capturing() as (capture, _submission):
        capture.diff()
        monkeypatch.setattr(TreeView, "refresh", slow)
        early = gevent.spawn(capture.diff)
        gevent.sleep(0.1)
        as_agent("echo x > late", world.source)
        assert b"late" in capture.diff()
        assert b"late" not in early.get()


def test_an_unchanged_tree_is_not_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.capturing() as (capture, _submission):
        as_agent("echo x >> README", world.source)
        capture.diff()
        gevent.sleep(0.1)
        first = capture.diff()
        requests: list[int] = []
        read = ReaderProcess.read

        def counted(self: ReaderProcess, wanted: list[ReadRequest], sink: ReadSink) -> None:
            requests.append(len(wanted))
            read(self, wanted, sink)

        monkeypatch.setattr(ReaderProcess, "read", counted)
        assert capture.diff() == first
        assert requests == []


def test_a_tree_that_is_written_to_meanwhile_is_never_an_error(world: World) -> None:
    with world.capturing() as (capture, _submission):
        script = (
            f"i=0; while [ ! -e {world.root}/enough ]; do i=$((i+1)); d=d$((i%5)); rm -rf $d; mkdir $d;"
            "echo $i > $d/a; ln -s a $d/b; mv $d/a $d/c; head -c 200000 /dev/zero > $d/z; : > $d/z; mkfifo $d/p;"
            "rm -f f; [ $((i%2)) = 0 ] && echo x > f || mkdir -p f/g; echo '*.x' > $d/.gitignore; rm -rf f; done"
        )
        writer = gevent.spawn(as_agent, script, world.source, check=False)
        count, until = 0, time.monotonic() + 4
        while count <= 3 or time.monotonic() < until:  # on a slow machine it takes longer
            capture.diff()
            capture.files()
            count += 1
        assert count > 3 and not writer.ready()
        (world.root / "enough").touch()
        writer.get()
        as_agent("chmod -R u+rwx .", world.source)
        before = fingerprint(world.source)
        assert capture.diff() is not None
        assert fingerprint(world.source) == before


def test_a_file_that_grows_without_end_is_read_to_where_it_was(world: World) -> None:
    with world.capturing() as (capture, _submission):
        script = "timeout 3 sh -c 'while :; do head -c 300000 /dev/zero; done' > growing; true"
        writer = gevent.spawn(as_agent, script, world.source)
        gevent.sleep(0.5)
        assert [file.path for file in capture.files()] == ["growing"]
        writer.get()


def test_a_killed_helper_is_replaced(world: World) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()
        as_agent("kill -9 -1; true", world.source, check=False)
        as_agent("echo x >> README", world.source)
        assert b"+x" in capture.diff()


def test_a_helper_that_is_killed_again_and_again_is_a_clear_error(world: World) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()

        def killer() -> None:
            while True:
                for pid in readers_of(world):
                    os.kill(pid, signal.SIGKILL)
                gevent.sleep(0.001)

        killing = gevent.spawn(killer)
        try:
            with pytest.raises(CaptureError, match="ended early"):
                capture.diff()
        finally:
            killing.kill()
        assert capture.diff() == b""


def test_a_stopped_helper_is_a_clear_error_and_the_next_call_works(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()
        monkeypatch.setattr(shell.reader, "SILENCE_S", 0.5)
        as_agent("kill -STOP -1; true", world.source, check=False)
        with pytest.raises(CaptureError, match="silent"):
            capture.diff()
        monkeypatch.undo()
        assert capture.diff() == b""


def test_the_agent_cannot_look_into_a_helper(world: World) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()
        pids = readers_of(world)
        assert pids
        for pid in pids:
            for name in ("environ", "mem", "fd/0", "maps", "exe"):
                looked = as_agent(
                    f"head -c 1 /proc/{pid}/{name} || readlink /proc/{pid}/{name}", world.source, check=False
                )
                assert looked.returncode != 0, name
            for word in (b"ssebench", b"capture", b"daemon", os.fsencode(world.root)):
                assert word not in as_agent(f"cat /proc/{pid}/cmdline", world.source).stdout


def test_helpers_have_the_agents_rights_and_nothing_of_the_daemons(world: World) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()
        for pid in readers_of(world):
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
            assert status["Uid"].split() == [str(world.agent.uid)] * 4
            assert str(world.agent.gid) not in status["Gid"].split()
            assert status["CapEff"].strip() == "0" * 16
            assert status["NoNewPrivs"].strip() == "1"
            assert sorted(os.listdir(f"/proc/{pid}/fd"), key=int)[:3] == ["0", "1", "2"]
            assert len(os.listdir(f"/proc/{pid}/fd")) <= 5


def test_what_belongs_to_others_and_is_closed_is_left_out(world: World) -> None:
    with world.capturing() as (capture, submission):
        capture.diff()
        secret = world.source / "src" / "secret"
        secret.write_text("root's own words\n")
        secret.chmod(0o600)
        hidden = world.source / "hidden"
        hidden.mkdir(mode=0o700)
        (hidden / "agents").write_text("words")
        os.chown(hidden / "agents", world.agent.uid, world.agent.gid)
        assert capture.diff() == b""
        submission.prepare()
        assert b"own words" not in submission.final_diff()


def test_a_directory_that_is_closed_and_not_the_agents_counts_as_unchanged(world: World) -> None:
    with world.capturing() as (capture, submission):
        capture.diff()
        os.chown(world.source / "src", 0, 0)
        (world.source / "src").chmod(0o700)
        assert capture.diff() == b""
        submission.prepare()
        assert differences(snapshot(world.clone), world.clone_at_start) == []
        os.chown(world.source / "src", world.agent.uid, world.agent.gid)
        as_agent("echo x >> src/main.c; rm src/util.c", world.source)
        assert {file.path: file.status for file in capture.files()} == {
            "src/main.c": "modified",
            "src/util.c": "deleted",
        }
        as_agent("rm -r src", world.source)
        assert {file.status for file in capture.files()} == {"deleted"}


@pytest.mark.parametrize(
    "act", ["rm -r project", "mv project p2", "mv project p2; ln -s p2 project", "mv project p2; mkfifo project"]
)
def test_a_source_directory_that_is_gone_is_an_error(world: World, act: str) -> None:
    os.chown(world.source.parent, world.agent.uid, world.agent.gid)
    with world.capturing() as (capture, submission):
        capture.diff()
        as_agent(act, world.source.parent)
        with pytest.raises(CaptureError, match="gone or is no directory"):
            capture.diff()
        with pytest.raises(CaptureError, match="gone or is no directory"):
            submission.prepare()
        assert not (world.results / "final.patch").exists()


def test_a_source_directory_that_came_back_is_captured(world: World) -> None:
    os.chown(world.source.parent, world.agent.uid, world.agent.gid)
    with world.capturing() as (capture, _submission):
        capture.diff()
        as_agent("mv project p2; mkdir project; echo new > project/new", world.source.parent)
        found = {file.path: file.status for file in capture.files()}
        assert found["new"] == "added"
        assert found["README"] == "deleted"


def test_a_path_that_git_cannot_hold_is_a_clear_error(world: World) -> None:
    with world.capturing() as (capture, _submission):
        as_agent(
            '/usr/bin/python3 -c \'import os; [(os.mkdir("d"*250), os.chdir("d"*250)) for _ in range(17)];'
            'open("f", "w").write("x")\'',
            world.source,
        )
        with pytest.raises(CaptureError, match="longer than 4095 bytes"):
            capture.diff()
        as_agent("rm -rf ddd*", world.source)
        assert capture.diff() == b""


@pytest.mark.parametrize(("name", "count"), [("a", 2040), ("d" * 250, 16)])
def test_a_path_as_long_as_git_can_hold_is_captured_and_applied(world: World, name: str, count: int) -> None:
    folders = [name] * count
    last = "f" * min(4095 - len("/".join(folders)) - 1, 255)
    program = (
        f"import os; [(os.mkdir('{name}'), os.chdir('{name}')) for _ in range({count})]; open('{last}', 'w').write('x')"
    )
    with world.capturing() as (capture, submission):
        try:
            as_agent(f'/usr/bin/python3 -c "{program}"', world.source)
            path = "/".join([*folders, last])
            assert [file.path for file in capture.files()] == [path]
            submission.prepare()
            fd = paths.open_file(str(world.clone), path.encode())
            assert os.read(fd, 9) == b"x"
            os.close(fd)
        finally:
            # Deeper than what removes the test's directory can go.
            subprocess.run(["rm", "-rf", str(world.source), str(world.clone)], check=True)


def test_a_directory_with_very_many_names_is_captured_and_forgotten_again(world: World) -> None:
    program = "[open('d/%05d' % i + 'n' * 100, 'w').close() for i in range(15_000)]"
    with world.capturing() as (capture, _submission):
        as_agent(f'mkdir d; /usr/bin/python3 -c "{program}"', world.source)
        assert len(capture.files()) == 15_000
        as_agent("rm -r d", world.source)
        assert capture.files() == []


def test_a_file_that_no_patch_can_hold_is_a_clear_error(world: World) -> None:
    with world.capturing() as (capture, _submission):
        as_agent("truncate -s 2000G enormous", world.source)
        with pytest.raises(CaptureError, match="larger than 1 GiB"):
            capture.diff()
        as_agent("mkdir out; mv enormous out/ 2>/dev/null || rm enormous", world.source, check=False)
        assert capture.diff() == b""


def test_a_file_whose_lines_git_has_no_memory_for_is_a_clear_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading.objects, "_GIT_MEMORY_KIB", 1 << 20)
    with world.capturing() as (capture, _submission):
        as_agent("yes '' | head -c 40000000 > lines", world.source)
        with pytest.raises(CaptureError, match="git diff-tree failed"):
            capture.diff()
        as_agent("rm lines", world.source)
        assert capture.diff() == b""


def test_an_edit_between_two_captures_with_its_times_put_back_is_seen(world: World) -> None:
    with world.capturing() as (capture, _submission):
        gevent.sleep(0.1)
        for text in (b"1", b"2", b"3"):
            as_agent(
                f"t=$(stat -c %y README); printf {text.decode()} | dd of=README conv=notrunc status=none;"
                'touch -d "$t" README',
                world.source,
            )
            assert b"+" + text in capture.diff()


def test_a_write_through_a_mapping_is_in_the_final_patch(world: World) -> None:
    # The page was written to before: the kernel need not change the file's times again.
    program = (
        "import mmap, time; f = open('README', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0] = 49; time.sleep(1.5);"
        "m[0] = 50; time.sleep(1.5)"
    )
    with world.capturing() as (capture, submission):
        writer = gevent.spawn(as_agent, f'/usr/bin/python3 -c "{program}"', world.source)
        gevent.sleep(0.8)
        capture.diff()
        writer.get()
        submission.prepare()
        assert differences(snapshot(world.clone), world.expected()) == []


def test_a_lease_on_a_file_only_delays(world: World) -> None:
    # The holder ignores that somebody wants the file, and keeps it for three seconds.
    program = (
        "import fcntl, os, signal, time; signal.signal(signal.SIGIO, lambda *a: None);"
        "fd = os.open('README', os.O_RDWR); os.write(fd, b'leased'); fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK);"
        "open('out/held', 'w').close(); time.sleep(3)"
    )
    with world.capturing() as (capture, _submission):
        capture.diff()
        holder = gevent.spawn(as_agent, f'/usr/bin/python3 -c "{program}"', world.source)
        while not (world.source / "out" / "held").exists():
            gevent.sleep(0.02)
        assert b"+leased" in capture.diff()
        holder.get()


def test_rules_that_come_and_go_leave_nothing_behind(world: World) -> None:
    with world.capturing() as (capture, submission):
        as_agent(
            "mkdir -p n/m .gitignore.d; echo 'n/' >> .gitignore; echo '*.x' > n/m/.gitignore; echo n > o", world.source
        )
        assert {file.path for file in capture.files()} == {".gitignore", "o"}
        as_agent("rm -r n; echo file > n", world.source)
        assert {file.path for file in capture.files()} == {".gitignore", "o", "n"}
        as_agent(
            "rm .gitignore; mkdir -p .gitignore/a; echo '*.y' > .gitignore/a/.gitignore; echo 1 > 1.y", world.source
        )
        capture.files()
        as_agent("rm -r .gitignore; echo '*.y' > .gitignore", world.source)
        assert {file.path for file in capture.files()} == {".gitignore", "o", "n"}
        submission.prepare()
        assert differences(snapshot(world.clone), world.expected()) == []


def test_nothing_piles_up_in_the_private_repository(world: World) -> None:
    def private_bytes() -> int:
        listed = subprocess.run(["du", "-sb", str(world.root / "state" / "capture")], capture_output=True, check=True)
        return int(listed.stdout.split()[0])

    with world.capturing() as (capture, _submission):
        for _ in range(12):
            as_agent("head -c 5000000 /dev/urandom > new; echo x >> README", world.source)
            capture.diff()
        assert private_bytes() < 45_000_000


def test_the_state_is_closed_to_everyone_else(world: World) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()
        assert as_agent(f"ls {world.root}/state", world.source, check=False).returncode != 0


def test_no_helper_stays_once_the_phase_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.capturing() as (capture, _submission):
        capture.diff()
        capture._state.mark_phase_ended()
        assert capture.diff() == b""
        assert readers_of(world) == []
        reads: list[int] = []
        read = ReaderProcess.read

        def counted(self: ReaderProcess, wanted: list[ReadRequest], sink: ReadSink) -> None:
            reads.append(len(wanted))
            read(self, wanted, sink)

        monkeypatch.setattr(ReaderProcess, "read", counted)
        gevent.sleep(0.1)
        capture.diff()
        reads.clear()
        assert capture.diff() == b""
        assert reads == [], "the next helper goes on where the last one ended"
        as_agent("echo x >> README", world.source)
        assert b"+x" in capture.diff()
        assert reads == [1]
        assert readers_of(world) == []


def test_a_capture_waits_for_the_base_and_the_hub_does_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(capture: Capture) -> None:
        gevent.sleep(0.3)
        prepare(capture)

    prepare = Capture._prepare
    monkeypatch.setattr(Capture, "_prepare", slow)
    with world.capturing() as (capture, _submission):
        as_agent("echo x >> README", world.source)
        asked = gevent.spawn(capture.diff)
        gevent.sleep(0.05)
        assert not asked.ready()
        assert b"+x" in asked.get()
