"""The logs of the checks: what they say, and that agents cannot fill the disk with them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from grading.checklog import CheckLogs
from shell.command import CommandResult


def written(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_log_has_command_code_duration_and_both_streams(tmp_path: Path) -> None:
    logs = CheckLogs(str(tmp_path / "logs"))
    logs.prepare()
    logs.write("build", ["/x/build.sh"], CommandResult(3, b"out\xff", b"err", 1.5), keep=True)
    head, *rest = (tmp_path / "logs/0001-build.log").read_bytes().split(b"\n")
    said = json.loads(head)
    assert (said["command"], said["code"], said["duration_s"]) == (["/x/build.sh"], 3, 1.5)
    assert rest == [b"--- stdout", b"out\xff", b"--- stderr", b"err", b""]


def test_numbers_go_on_after_a_new_start(tmp_path: Path) -> None:
    for _ in range(2):
        logs = CheckLogs(str(tmp_path))
        logs.prepare()
        logs.write("build", [], CommandResult(0, b"", b""), keep=True)
    assert written(tmp_path) == ["0001-build.log", "0002-build.log"]


def test_old_logs_of_agents_make_room_and_those_of_the_grader_stay(tmp_path: Path) -> None:
    logs = CheckLogs(str(tmp_path), budget_bytes=1000)
    logs.prepare()
    logs.write("graded", [], CommandResult(0, b"x" * 900, b""), keep=True)
    for _ in range(5):
        logs.write("build", [], CommandResult(0, b"x" * 300, b""), keep=False)
    assert written(tmp_path) == ["0001-graded.log", "0005-build.log", "0006-build.log"]
