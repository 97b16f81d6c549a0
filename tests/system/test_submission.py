"""prepare_grading: the patch saved, applied and checked; again, empty, impossible, and on a full disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from grading.capture import Capture
from grading.state import open_state
from grading.submission import ApplyError, Submission, SubmissionError
from grading.treeview import CaptureError
from tests.support.roundtrip import World, as_agent, differences, snapshot

pytestmark = pytest.mark.users


def test_before_grading_there_is_no_diff(world: World) -> None:
    with world.capturing() as (_capture, submission):
        assert submission.final_diff() == b""


def test_an_empty_patch_is_a_success(world: World) -> None:
    with world.capturing() as (_capture, submission):
        submission.prepare()
        assert (world.results / "final.patch").read_bytes() == b""
        assert (world.results / "commits.log").read_bytes() == b""
        assert differences(snapshot(world.clone), world.clone_at_start) == []


def test_a_second_call_starts_over_and_gives_the_same(world: World) -> None:
    with world.capturing() as (_capture, submission):
        as_agent("echo x >> README; rm src/util.c; mkfifo p; mv docs d2", world.source)
        submission.prepare()
        first, patch = snapshot(world.clone), submission.final_diff()
        submission.prepare()
        assert differences(snapshot(world.clone), first) == []
        assert submission.final_diff() == patch


def test_a_later_call_takes_the_tree_as_it_is_then(world: World) -> None:
    with world.capturing() as (_capture, submission):
        as_agent("echo x > one", world.source)
        submission.prepare()
        as_agent("rm one; echo y > two", world.source)
        submission.prepare()
        assert differences(snapshot(world.clone), world.expected()) == []
        assert not (world.clone / "one").exists()


def test_a_clone_that_was_altered_is_put_back_first(world: World) -> None:
    with world.capturing() as (capture, submission):
        capture.wait_for_pristine()
        as_agent("echo x >> README", world.source)
        (world.clone / "README").write_text("altered\n")
        (world.clone / "src" / "main.c").unlink()
        (world.clone / "left over").mkdir()
        (world.clone / "left over" / "x").write_text("x")
        submission.prepare()
        assert differences(snapshot(world.clone), world.expected()) == []


def test_times_and_modes_of_the_clone_survive_a_reset(world: World) -> None:
    with world.capturing() as (capture, submission):
        os.utime(world.clone / "README", ns=(10**18, 10**18 + 7))
        (world.clone / "run.sh").chmod(0o750)
        capture.wait_for_pristine()
        (world.clone / "README").unlink()
        (world.clone / "run.sh").unlink()
        submission.prepare()
        assert (world.clone / "README").stat().st_mtime_ns == 10**18 + 7
        assert (world.clone / "run.sh").stat().st_mode & 0o7777 == 0o750


def test_a_patch_that_does_not_apply_leaves_the_clone_clean(world: World) -> None:
    with world.capturing() as (capture, submission):
        capture.wait_for_pristine()
        pristine = world.root / "state" / "pristine"
        (pristine / "new").write_text("in the way\n")
        as_agent("sed -i 's/toy/other/' README; rm src/util.c; echo n > new", world.source)
        with pytest.raises(ApplyError, match=r"^git apply failed: "):
            submission.prepare()
        assert differences(snapshot(world.clone), snapshot(pristine)) == []
        assert b"+n" in submission.final_diff()


def test_a_kept_base_that_was_altered_is_noticed(world: World) -> None:
    with world.capturing() as (capture, _submission):
        capture.wait_for_pristine()
        (world.root / "state" / "pristine" / "README").write_text("something else entirely\n")
        as_agent("sed -i 's/toy/other/' README", world.source)
        with pytest.raises(CaptureError, match=r"README' is not what it was"):
            capture.diff()


def test_what_git_made_of_the_patch_is_compared_with_what_was_captured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Submission, "_apply", lambda self: None)
    with world.capturing() as (_capture, submission):
        as_agent("echo x >> README", world.source)
        with pytest.raises(ApplyError, match=r"README' is not what was captured"):
            submission.prepare()


def test_the_reserve_is_freed_before_anything_is_written(world: World) -> None:
    with world.capturing() as (_capture, submission):
        assert (world.root / "state" / "reserve").exists()
        submission.prepare()
        assert not (world.root / "state" / "reserve").exists()


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """A file system of 72 MiB, 64 of which are the reserve."""
    disk = world.root / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=72m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("cannot mount a small file system here: " + mounted.stderr.decode())
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "ab", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            pass


def test_a_full_disk_cannot_stop_the_grading(world: World, small_disk: Path) -> None:
    state = open_state(str(small_disk / "state"), task_id="toy", source=str(world.source), fresh=False)
    capture = Capture(str(world.source), str(world.clone), state, world.agent)
    try:
        capture.start()
        capture.wait_for_pristine()
        submission = Submission(
            capture, state, str(world.clone), str(small_disk / "results"), str(world.source), world.agent
        )
        as_agent("echo x >> README; head -c 100000 /dev/urandom > new", world.source)
        fill(small_disk)
        submission.prepare()
        assert differences(snapshot(world.clone), world.expected()) == []
    finally:
        capture.close()


def test_where_even_the_reserve_is_too_small_nothing_is_half_written(world: World, small_disk: Path) -> None:
    state = open_state(str(small_disk / "state"), task_id="toy", source=str(world.source), fresh=False)
    capture = Capture(str(world.source), str(world.clone), state, world.agent)
    try:
        capture.start()
        capture.wait_for_pristine()
        results = small_disk / "results"
        submission = Submission(capture, state, str(world.clone), str(results), str(world.source), world.agent)
        as_agent("echo x >> README", world.source)
        submission.prepare()
        patch = submission.final_diff()
        as_agent("head -c 5000000 /dev/urandom > new", world.source)
        fill(small_disk)
        with pytest.raises(CaptureError):
            submission.prepare()
        assert sorted(os.listdir(results)) == ["commits.log", "final.patch"]
        assert submission.final_diff() == patch
        (small_disk / "filler").unlink()
        submission.prepare()
        assert differences(snapshot(world.clone), world.expected()) == []
    finally:
        capture.close()


def test_a_saved_diff_that_cannot_be_read_is_an_error(world: World) -> None:
    with world.capturing() as (_capture, submission):
        (world.results / "final.patch").mkdir(parents=True)
        with pytest.raises(SubmissionError):
            submission.final_diff()


def test_the_saved_diff_is_bytes_as_they_are(world: World) -> None:
    with world.capturing() as (_capture, submission):
        as_agent(r"printf 'caf\xe9\r\n\rx' > latin; printf 'a\r\n' >> README", world.source)
        submission.prepare()
        assert b"caf\xe9\r\n" in submission.final_diff()
        assert submission.final_diff() == (world.results / "final.patch").read_bytes()


def test_the_agents_commits_are_listed(world: World) -> None:
    with world.capturing() as (_capture, submission):
        as_agent(
            "echo 1 >> README; git commit -qam 'first change' -m 'with a body' -m 'of two parts';"
            "echo 2 >> README; git commit -qam 'second change'",
            world.source,
        )
        heads = as_agent("git rev-list HEAD -2", world.source).stdout.decode().split()
        submission.prepare()
        assert (world.results / "commits.log").read_text() == (
            f"{heads[0]}\nsecond change\n---\n{heads[1]}\nfirst change\nwith a body\n\nof two parts\n"
        )


def test_without_a_clone_the_source_tree_at_start_up_is_the_base(world: World) -> None:
    subprocess.run(["rm", "-r", str(world.clone)], check=True)
    at_start = snapshot(world.source)
    with world.capturing() as (capture, submission):
        as_agent("echo x >> README; rm src/main.c; echo o > out/new", world.source)
        assert {file.path for file in capture.files()} == {"README", "src/main.c"}
        submission.prepare()
        world.clone_at_start = at_start
        assert differences(snapshot(world.clone), world.expected()) == []


@pytest.mark.parametrize("with_clone", [True, False])
def test_a_new_start_takes_no_new_base(world: World, with_clone: bool) -> None:
    if not with_clone:
        subprocess.run(["rm", "-r", str(world.clone)], check=True)
    with world.capturing() as (capture, submission):
        capture.wait_for_pristine()
    as_agent("echo x >> README; git commit -qam x; rm -rf src/.git", world.source)
    with world.capturing() as (capture, submission):
        assert [file.path for file in capture.files()] == ["README"]
        submission.prepare()
        assert b"x" in (world.clone / "README").read_bytes()
    with world.capturing() as (capture, submission):
        # The clone is the graded one by now; the base still is not.
        assert [file.path for file in capture.files()] == ["README"]
        submission.prepare()
        assert differences(snapshot(world.clone), world.expected()) == []


def test_a_fresh_start_takes_a_new_base(world: World) -> None:
    with world.capturing() as (capture, _submission):
        capture.wait_for_pristine()
    (world.clone / "README").write_text("a new beginning\n")
    with world.capturing(fresh=True) as (capture, _submission):
        assert b"-a new beginning" in capture.diff()
