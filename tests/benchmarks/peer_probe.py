"""Times ``true`` through other tools; run by peers.py with the Python of their environment, which has none of ours.

Prints JSON: the name of each tool to its times in milliseconds.
"""

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_TOKEN = "bench"


def main() -> None:
    """Measure each peer in turn."""
    rounds = int(sys.argv[1])
    json.dump({"swe-rex over HTTP": swe_rex(rounds), "pexpect replwrap": replwrap(rounds)}, sys.stdout)


def replwrap(rounds: int) -> list[float]:
    """pexpect's own wrapper around a prompt."""
    from pexpect import replwrap as wrapper

    bash = wrapper.bash()
    return _times_ms(lambda: bash.run_command("true"), rounds)


def swe_rex(rounds: int) -> list[float]:
    """The server as it is started in a container, over a kept-alive connection."""
    port = _free_port()
    command = [sys.executable, "-m", "swerex", "--port", str(port), "--auth-token", _TOKEN]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        _until_up(connection)
        _post(connection, "/create_session", {"session_type": "bash"})
        action = {"action_type": "bash", "command": "true", "check": "silent"}
        return _times_ms(lambda: _post(connection, "/run_in_session", action), rounds)
    finally:
        server.kill()
        server.wait()


def _times_ms(call: Callable[[], Any], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1000)
    return times


def _post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> None:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "X-API-Key": _TOKEN})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {text[:200]!r}")


def _until_up(connection: http.client.HTTPConnection) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            connection.request("GET", "/is_alive", headers={"X-API-Key": _TOKEN})
            connection.getresponse().read()
            return
        except OSError:
            connection.close()
            time.sleep(0.1)
    raise RuntimeError("swe-rex did not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
