"""POST /tool/bash: beside the least that could do it at all, and beside other tools (--peers)."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import peer_rows
from tests.benchmarks.table import BenchContext, Row, percentile
from tests.support.live import REPOSITORY, LiveDaemon, live_daemon

_LARGE_BYTES = 100_000_000
_RAISED_LIMIT = 1 << 28
_DEFAULT_LIMIT = 1 << 24
_READY_AIM_MS = 30.0
_VERSION_AIM_MS = 50.0
_LIMIT_TRUE = "bare bash and WSGI: true, p50"
_LIMIT_LARGE = "bare bash and WSGI: 100 MB"


class UnixConnection(http.client.HTTPConnection):
    """A kept-alive connection to a Unix socket, with as little client in the way as possible."""

    def __init__(self, path: str) -> None:
        super().__init__("daemon", timeout=120)
        self._path = path

    def connect(self) -> None:
        """Called by http.client when there is no connection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def bash(self, command: str) -> bytes:
        """Run a command; the answer's body."""
        body = json.dumps({"command": command})
        self.request("POST", "/tool/bash?action=execute", body, {"Content-Type": "application/json"})
        return self.getresponse().read()

    def version(self) -> None:
        """GET /version."""
        self.request("GET", "/version")
        self.getresponse().read()


def rows(context: BenchContext) -> list[Row]:
    """The figures of the shell."""
    with context.folder("shell") as folder:
        with _limit_server(folder) as path, live_daemon(folder, SSE_OUTPUT_LIMIT=str(_RAISED_LIMIT)) as live:
            live.agent.get("/files")  # the daemon has done what it does at its start
            bare, ours = UnixConnection(path), UnixConnection(live.env["SSE_DAEMON_SOCKET"])
            found = [
                *_true_rows(bare, ours, 4 if context.quick else 40),
                *_large_rows(bare, ours, 1 if context.quick else 5),
                _ready_row(ours, 10 if context.quick else 50),
            ]
            bare.close()
            ours.close()
        with context.folder("shell-default") as second, live_daemon(second) as live:
            found += _printing_rows(live, 2.0 if context.quick else 10.0)
    return [*found, *peer_rows(context, found[0])]


def _true_rows(bare: UnixConnection, ours: UnixConnection, rounds: int) -> list[Row]:
    """Both in turns, so that other load on the machine meets both."""
    limit_times, times = [], []
    for _ in range(rounds):
        limit_times += _times_ms(bare, "true", 50, warm_up=5)
        times += _times_ms(ours, "true", 50, warm_up=5)
    limit, p50, p99 = percentile(limit_times, 50), percentile(times, 50), percentile(times, 99)
    return [
        Row(_LIMIT_TRUE, limit, "ms"),
        Row("true, p50", p50, "ms", _LIMIT_TRUE, p50 / limit, 2.5),
        Row("true, p99", p99, "ms", "true, p50", p99 / p50, 6.0),
    ]


def _large_rows(bare: UnixConnection, ours: UnixConnection, rounds: int) -> list[Row]:
    """The best of a few of each: other load only ever adds."""
    turns = [(_large_s(bare), _large_s(ours)) for _ in range(rounds)]
    limit, seconds = (min(times) for times in zip(*turns, strict=True))
    return [Row(_LIMIT_LARGE, limit, "s"), Row("100 MB", seconds, "s", _LIMIT_LARGE, seconds / limit, 1.5)]


def _ready_row(connection: UnixConnection, rounds: int) -> Row:
    """From the end of one shell to the first answer of the next."""
    times = []
    for _ in range(rounds):
        connection.bash("exit 0")
        times += _times_ms(connection, "true", 1, warm_up=0)
    p50 = percentile(times, 50)
    return Row("a new shell, p50", p50, "ms", f"{_READY_AIM_MS:g} ms", p50 / _READY_AIM_MS, 1.0)


def _printing_rows(live: LiveDaemon, seconds: float) -> list[Row]:
    """What a command that prints at full speed does to memory and to other requests."""
    live.bash("true")
    status = Path(f"/proc/{live.process.pid}/status")
    Path(f"/proc/{live.process.pid}/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _high_water_kib(status)
    printing = threading.Thread(target=live.bash, args=(f"timeout {seconds:g} yes",))
    printing.start()
    time.sleep(0.2)
    connection = UnixConnection(live.env["SSE_DAEMON_SOCKET"])
    times = []
    while printing.is_alive():
        started = time.perf_counter()
        connection.version()
        times.append((time.perf_counter() - started) * 1000)
        time.sleep(0.005)
    printing.join()
    connection.close()
    grown = (_high_water_kib(status) - before) * 1024
    p99 = percentile(times, 99)
    return [
        Row("growth while printing", grown / 2**20, "MiB", "SSE_OUTPUT_LIMIT", grown / _DEFAULT_LIMIT, 6.0),
        Row("/version while printing, p99", p99, "ms", f"{_VERSION_AIM_MS:g} ms", p99 / _VERSION_AIM_MS, 1.0),
    ]


def _high_water_kib(status: Path) -> int:
    fields: dict[str, Any] = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmHWM"].split()[0])


def _times_ms(connection: UnixConnection, command: str, rounds: int, *, warm_up: int) -> list[float]:
    for _ in range(warm_up):
        connection.bash(command)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        connection.bash(command)
        times.append((time.perf_counter() - started) * 1000)
    return times


def _large_s(connection: UnixConnection) -> float:
    started = time.perf_counter()
    body = connection.bash(f"head -c {_LARGE_BYTES} /dev/zero | tr '\\0' x")
    seconds = time.perf_counter() - started
    assert len(body) >= _LARGE_BYTES
    return seconds


@contextmanager
def _limit_server(folder: Path) -> Iterator[str]:
    path = str(folder / "limit.sock")
    process = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.limit_server", path], cwd=REPOSITORY)
    try:
        deadline = time.monotonic() + 20
        while not Path(path).exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        time.sleep(0.1)  # between bind and listen
        yield path
    finally:
        process.kill()
        process.wait()
