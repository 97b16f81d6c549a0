"""Capture against git's own commands on the same tree: taking the base, unchanged trees, a hundred changed files."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import gevent

from grading.capture import Capture
from tests.benchmarks.big_tree import make_big_tree
from tests.benchmarks.table import BenchContext, Row, percentile
from tests.support.cases import BASE_TREE
from tests.support.roundtrip import GIT_ENV, World, agent_account, as_agent

_CHANGED = 100
_CAPTURES = 1000
_GIT = ("git", "-c", "safe.directory=*")


def rows(context: BenchContext) -> list[Row]:
    """The capture's figures; every ratio is to a row of the same run."""
    files, megabytes = (2000, 30) if context.quick else (20_000, 300)
    with context.folder("capture") as folder:
        world = World(folder, agent_account())
        world.source.mkdir(parents=True)
        make_big_tree(world.source, files=files, megabytes=megabytes)
        world.commit()
        found = _measure(world)
    with context.folder("capture-memory") as folder:
        world = World(folder, agent_account())
        world.lay_out(BASE_TREE)
        found.append(_memory(world, 100 if context.quick else _CAPTURES))
    return found


def _measure(world: World) -> list[Row]:
    found = [_row("git hash-object of all files", _median(lambda: _hash_all(world), 3))]
    with world.capturing() as (capture, submission):
        found += _starting(world, capture, found[0])
        found += _unchanged(world, capture)
        found += _hundred_changed(world, capture)
        found += _polling(capture)
        found.append(_row("prepare_grading, 100 files changed", _timed(submission.prepare)))
    return found


def _starting(world: World, capture: Capture, hashing: Row) -> list[Row]:
    """How long the base takes, and how long others waited for their turn meanwhile."""
    delays: list[float] = []
    watch = gevent.spawn(_watch, delays)
    taken = _timed(lambda: capture.wait_for_base())
    capture.diff()
    watch.kill()
    return [
        _row("taking the base", taken, hashing, 3.0),
        _row("longest wait of other requests meanwhile", max(delays)),
        _row("wait of other requests meanwhile, p99", percentile(delays, 99)),
    ]


def _unchanged(world: World, capture: Capture) -> list[Row]:
    capture.wait_for_pristine()
    status = _row("git status --porcelain, warm", _median(lambda: _git(world, "status", "--porcelain"), 9))
    return [
        status,
        _row("diff of an unchanged tree", _median(capture.diff, 9), status, 1.5),
        _row("files of an unchanged tree", _median(capture.files, 9), status, 1.5),
    ]


def _hundred_changed(world: World, capture: Capture) -> list[Row]:
    first = []
    for number in range(5):
        # Each time other text in the same files, so that each time is the first.
        _change(world.source, number)
        _git(world, "diff")
        time.sleep(0.1)
        first.append(_timed(capture.diff))
    git = _row("git diff of 100 changed files", _median(lambda: _git(world, "diff"), 9))
    capture.files()
    return [
        git,
        _row("first diff after 100 files changed", statistics.median(first), git, 2.5),
        _row("diff again", _median(capture.diff, 9), git, 1.5),
        _row("files again", _median(capture.files, 9), git, 1.5),
    ]


def _polling(capture: Capture) -> list[Row]:
    """Three clients ask for both at the same moment: the work of one."""
    alone = _row("diff, one client", _median(capture.diff, 5))

    def three() -> None:
        calls = [gevent.spawn(call) for call in (capture.diff, capture.files) * 3]
        gevent.joinall(calls, raise_error=True)

    return [alone, _row("diff and files, three clients at once", _median(three, 5), alone, 1.5)]


def _memory(world: World, count: int) -> Row:
    """Captures of a tree in which something else is different each time."""

    def captures(number: int) -> None:
        for i in range(number):
            (world.source / "README").write_text(f"{i}\n" * 100)
            (world.source / f"new{i % 7}").write_text(f"{i}\n")
            capture.diff()
            capture.files()

    with world.capturing() as (capture, _submission):
        captures(count // 5)
        before = _resident_mb()
        captures(count)
        return Row(f"growth of memory over {count} captures", _resident_mb() - before, "MB")


def _change(root: Path, number: int) -> None:
    paths = sorted(root.rglob("*.c"))
    for path in paths[:: len(paths) // _CHANGED][:_CHANGED]:
        text = path.read_bytes().replace(b"(int)hits", b"(int)hits + %d" % number, 1)
        path.write_bytes(text + b"/* changed: %d */\n" % number)


def _hash_all(world: World) -> None:
    command = "find . -path ./.git -prune -o -type f -print | git hash-object --stdin-paths --no-filters > /dev/null"
    as_agent(command, world.source)


def _git(world: World, *arguments: str) -> None:
    subprocess.run([*_GIT, *arguments], cwd=world.source, env=GIT_ENV, stdout=subprocess.DEVNULL, check=True)


def _watch(delays: list[float]) -> None:
    while True:
        started = time.monotonic()
        gevent.sleep(0.001)
        delays.append(time.monotonic() - started)


def _timed(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def _median(call: Callable[[], object], count: int) -> float:
    call()
    return statistics.median(_timed(call) for _ in range(count))


def _row(name: str, seconds: float, base: Row | None = None, bound: float | None = None) -> Row:
    milliseconds = seconds * 1000
    if base is None:
        return Row(name, milliseconds, "ms")
    return Row(name, milliseconds, "ms", base.name, milliseconds / base.value, bound)


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
