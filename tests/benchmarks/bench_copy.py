"""The private copy of a large tree against ``cp -a`` of it, and how the daemon answers while it makes one."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from shell.accounts import Account, current_account, find_account, is_isolated
from shell.copying import TreeReader, copy_tree
from tests.benchmarks.big_tree import make_big_tree
from tests.benchmarks.table import BenchContext, Row, percentile
from tests.support.live import LiveDaemon, live_daemon, uds_client
from tests.support.users import agent_name, runner_name, why_unavailable

_AIM = 1.5
_POLL_SECONDS = 0.002


def rows(context: BenchContext) -> list[Row]:
    """Copies in turn with ``cp -a`` in the same run; medians."""
    files, megabytes = (2000, 30) if context.quick else (20_000, 300)
    agent, runner = _accounts()
    with context.folder("copy") as folder:
        source = folder / "from"
        make_big_tree(source, files=files, megabytes=megabytes)
        _give(source, agent)
        found = _copies(folder, source, agent, runner, rounds=2 if context.quick else 3)
    with context.folder("copy-live") as folder:
        found += _answers_meanwhile(folder, files, megabytes)
    return found


def _accounts() -> tuple[Account, Account]:
    if why_unavailable() is not None:
        return current_account(), current_account()
    return find_account(agent_name()), find_account(runner_name())


def _copies(folder: Path, source: Path, agent: Account, runner: Account, *, rounds: int) -> list[Row]:
    plain: list[float] = []
    private: list[float] = []
    clone: list[float] = []
    for number in range(rounds + 1):
        times = (
            _timed(folder, runner, lambda to: subprocess.run(["cp", "-a", f"{source}/.", str(to)], check=True)),
            _timed(folder, runner, lambda to: _copy(source, TreeReader.confined(agent), to, runner)),
            _timed(folder, runner, lambda to: _copy(source, TreeReader(current_account()), to, runner)),
        )
        # The first round only brings the tree into memory.
        if number > 0:
            for kept, seconds in zip((plain, private, clone), times, strict=True):
                kept.append(seconds)
    base = statistics.median(plain)
    name = "cp -a of the tree"
    return [
        Row(name, base, "s"),
        _row("private copy, read as the agent", statistics.median(private), name, base),
        _row("private copy, read as root (grading)", statistics.median(clone), name, base),
    ]


def _row(name: str, seconds: float, base: str, base_seconds: float) -> Row:
    return Row(name, seconds, "s", base, seconds / base_seconds, _AIM)


def _copy(source: Path, reader: TreeReader, to: Path, runner: Account) -> None:
    copy_tree(str(source), reader, str(to), runner, timeout_s=600)


def _timed(folder: Path, runner: Account, make: Callable[[Path], object]) -> float:
    """Seconds that ``make`` takes to fill a new directory; what earlier copies left to write is written before."""
    to = folder / "to"
    to.mkdir()
    if is_isolated():
        os.chown(to, runner.uid, runner.gid)
    os.sync()
    started = time.monotonic()
    make(to)
    taken = time.monotonic() - started
    subprocess.run(["rm", "-rf", str(to)], check=True)
    return taken


def _answers_meanwhile(folder: Path, files: int, megabytes: float) -> list[Row]:
    """GET /version on the agent's socket while the daemon copies the tree, builds in it and removes the copy."""
    with live_daemon(folder) as daemon:
        make_big_tree(daemon.task.source / "big", files=files, megabytes=megabytes)
        _give(daemon.task.source / "big", _accounts()[0])
        idle = _poll_while(daemon, lambda: time.sleep(1))
        busy = _poll_while(daemon, lambda: _check(daemon))
    return [
        Row("GET /version, p99, idle", percentile(idle, 99), "ms"),
        Row("GET /version, p99, during a check of the tree", percentile(busy, 99), "ms"),
        Row("GET /version, longest, during a check of the tree", max(busy), "ms"),
    ]


def _check(daemon: LiveDaemon) -> None:
    answer = daemon.bencher("function_test")
    assert answer.status_code == 200, answer.text


def _poll_while(daemon: LiveDaemon, work: Callable[[], None]) -> list[float]:
    """Milliseconds of each answer while ``work`` runs in a thread."""
    thread = threading.Thread(target=work)
    taken: list[float] = []
    with uds_client(daemon.env["SSE_DAEMON_SOCKET"]) as client:
        client.get("/version")
        thread.start()
        while thread.is_alive():
            taken.append(_ask(client))
            time.sleep(_POLL_SECONDS)
    thread.join()
    return taken


def _ask(client: httpx.Client) -> float:
    started = time.monotonic()
    assert client.get("/version").status_code == 200
    return (time.monotonic() - started) * 1000


def _give(tree: Path, account: Account) -> None:
    if is_isolated():
        subprocess.run(["chown", "-R", f"{account.uid}:{account.gid}", str(tree)], check=True)
