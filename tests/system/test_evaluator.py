"""The program ``ssebench-evaluate`` beside a live daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import REPOSITORY, LiveDaemon, live_daemon, scratch
from tests.support.toy_task import REFERENCE_DIFF, ToyTask

pytestmark = pytest.mark.users


@pytest.fixture
def daemon() -> Iterator[LiveDaemon]:
    with scratch() as root, live_daemon(root) as running:
        yield running


def environment(daemon: LiveDaemon, **more: str) -> dict[str, str]:
    return {
        "PATH": daemon.env["PATH"],
        "SSE_DAEMON_SOCKET": daemon.env["SSE_ADMIN_SOCKET"],
        "SSE_RESULTS": daemon.env["SSE_RESULTS"],
        **more,
    }


def start(daemon: LiveDaemon, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "grading.evaluator"],
        cwd=REPOSITORY,
        env=environment(daemon, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_grading(daemon: LiveDaemon) -> subprocess.Popen[str]:
    """Start the evaluator and return once it has prepared the grade."""
    process = start(daemon)
    deadline = time.monotonic() + 20
    while "prepare_grading" not in daemon.log() and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def evaluate(daemon: LiveDaemon, **more: str) -> dict[str, Any]:
    """Run the evaluator to its end; what the daemon then answers at GET /result."""
    process = start(daemon, **more)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    return result(daemon)


def result(daemon: LiveDaemon) -> dict[str, Any]:
    body: dict[str, Any] = daemon.agent.get("/result").json()
    return body


def slow_down(task: ToyTask, script: str) -> None:
    (task.bench / "scripts" / script).write_text("#!/bin/sh\nsleep 50\n")


def test_a_repaired_tree_is_passed(daemon: LiveDaemon) -> None:
    assert result(daemon) == {"available": False}
    daemon.bash(f"git apply - <<'END'\n{REFERENCE_DIFF}END")
    body = evaluate(daemon, AGENT_DURATION="12")
    assert body["available"] is True and body["patch_result"]["status"] == "passed"
    assert body["runtime_result"] == {"agent_duration": 12, "agent_timeout": False, "evaluator_timeout": False}
    stored = daemon.results / "result.json"
    assert stored.stat().st_mode & 0o777 == 0o600 and json.loads(stored.read_bytes())["patch_result"]["pov_total"] == 2


def test_an_untouched_tree_is_failed(daemon: LiveDaemon) -> None:
    patch = evaluate(daemon)["patch_result"]
    assert (patch["status"], patch["pov_passed"], patch["pov_total"]) == ("failed", 0, 2)
    assert patch["error_msg"] == f"PoC failed: {daemon.task.bench}/pocs/one.txt"


def test_the_second_grade_is_the_first(daemon: LiveDaemon) -> None:
    daemon.bash(f"git apply - <<'END'\n{REFERENCE_DIFF}END")
    assert evaluate(daemon) == evaluate(daemon)


def test_the_time_limit_ends_the_grade_and_the_script(daemon: LiveDaemon) -> None:
    slow_down(daemon.task, "test.sh")
    body = evaluate(daemon, TIMEOUT="3", SSE_METRIC_AGENT_TIMEOUT="1")
    assert body["patch_result"]["status"] == "error" and body["patch_result"]["error_msg"] == "Timeout (3s)"
    assert body["runtime_result"] == {"agent_duration": 0, "agent_timeout": True, "evaluator_timeout": True}
    # The script that was running has been ended with its client: the next action need not wait for it.
    started = time.monotonic()
    assert daemon.bencher("build", admin=True).json()["code"] == 0
    assert time.monotonic() - started < 30


def test_a_signal_is_a_result(daemon: LiveDaemon) -> None:
    slow_down(daemon.task, "build.sh")
    process = start_grading(daemon)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=20)
    assert process.returncode == 0, printed
    patch = result(daemon)["patch_result"]
    assert patch["status"] == "error" and patch["error_msg"] == "Exception: the evaluator was ended by SIGTERM"


def test_the_agents_socket_cannot_be_graded_over(daemon: LiveDaemon) -> None:
    patch = evaluate(daemon, SSE_DAEMON_SOCKET=daemon.env["SSE_DAEMON_SOCKET"])["patch_result"]
    assert patch["status"] == "error" and patch["error_msg"].startswith("Exception: ")


def test_a_daemon_that_dies_is_a_result(daemon: LiveDaemon) -> None:
    slow_down(daemon.task, "build.sh")
    process = start_grading(daemon)
    daemon.stop(signal.SIGKILL)
    printed, _ = process.communicate(timeout=20)
    assert process.returncode == 0, printed
    patch = json.loads((daemon.results / "result.json").read_bytes())["patch_result"]
    assert patch["status"] == "error" and patch["error_msg"].startswith("Exception: no answer from the daemon at ")


def test_a_results_directory_that_is_gone_is_1(daemon: LiveDaemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = start(daemon, SSE_RESULTS=str(tmp_path / "file"))
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and printed.startswith("ssebench-evaluate: cannot write ")
    assert os.listdir(tmp_path) == ["file"]
