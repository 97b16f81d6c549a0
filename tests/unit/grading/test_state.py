"""The state directory: what a crash must not lose, and what must not be trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grading.state import RESERVE_BYTES, RunState, StateError, open_state, write_durably


def opened(path: Path, *, task: str = "a", source: str = "/src/a", fresh: bool = False) -> RunState:
    return open_state(str(path), task_id=task, source=source, fresh=fresh)


def test_a_new_start_of_the_same_run_keeps_the_phase_ended(tmp_path: Path) -> None:
    first = opened(tmp_path / "state")
    assert not first.resumed
    assert not first.phase_ended()
    first.mark_phase_ended()
    second = opened(tmp_path / "state")
    assert second.resumed
    assert second.phase_ended()


@pytest.mark.parametrize(
    "other", [{"task": "b"}, {"source": "/src/b"}, {"fresh": True}], ids=["task", "source", "fresh"]
)
def test_another_run_begins_with_nothing_of_the_one_before(tmp_path: Path, other: dict[str, str]) -> None:
    first = opened(tmp_path / "state")
    first.mark_phase_ended()
    (tmp_path / "state" / "baseline").mkdir()
    (tmp_path / "state" / "baseline" / "object").write_text("old")
    second = opened(tmp_path / "state", **other)  # type: ignore[arg-type]
    assert not second.resumed
    assert not second.phase_ended()
    assert not os.path.exists(second.baseline_path)


def test_a_state_that_was_half_written_counts_as_none(tmp_path: Path) -> None:
    opened(tmp_path / "state")
    (tmp_path / "state" / "run.json").write_text('{"task": "a", "sou')
    assert not opened(tmp_path / "state").resumed


def test_the_directory_is_private(tmp_path: Path) -> None:
    opened(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "file", "open to others"])
def test_a_directory_that_others_could_reach_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        path.write_text("")
    else:
        path.mkdir()
        path.chmod(0o755)
    with pytest.raises(StateError, match=str(path)):
        opened(path)


def test_the_reserve_holds_disk_space_until_it_is_freed(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    reserve = tmp_path / "state" / "reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    state.free_reserve()
    state.free_reserve()
    assert not reserve.exists()


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "final.patch"
    write_durably(str(target), b"old")
    (tmp_path / "final.patch.partial").mkdir()
    with pytest.raises(OSError):
        write_durably(str(target), b"new")
    assert target.read_bytes() == b"old"


def test_a_link_at_the_partial_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    (tmp_path / "file.partial").symlink_to(victim)
    with pytest.raises(OSError):
        write_durably(str(tmp_path / "file"), b"new")
    assert victim.read_bytes() == b"untouched"
