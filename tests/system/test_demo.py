"""The demo as a user starts it: its exit code is the grade, its files are where it says, it destroys nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live import REPOSITORY, scratch
from tests.support.users import agent_name, runner_name

pytestmark = pytest.mark.users

TASK = "recdump-CWE-121"


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


def demo(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SSE_")},
        "PYTHONPATH": str(REPOSITORY),
        "SSE_AGENT_USER": agent_name(),
        "SSE_RUNNER_USER": runner_name(),
    }
    command = [sys.executable, "-m", "demo", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_scripted_agent_passes_and_its_files_are_where_it_says(root: Path) -> None:
    done = demo("--dir", "stage", cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    results = root / "stage" / TASK / "var" / "results"
    assert f"result.json: {results}/result.json" in done.stdout and f"final.patch: {results}/final.patch" in done.stdout
    assert json.loads((results / "result.json").read_bytes())["patch_result"]["status"] == "passed"
    assert (results / "final.patch").read_text().startswith("diff --git ")
    assert "3 of 3 pass" in done.stdout and done.stderr == ""


def test_without_an_agent_the_same_stage_fails(root: Path) -> None:
    done = demo("--dir", str(root / "stage"), "--agent", "none")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 of 3 pass" in done.stdout and f"PoC failed: {root}" in done.stdout


@pytest.mark.parametrize(
    "directory, message",
    [
        ("foreign", "holds notes.txt, which is no demo's"),
        ("with blank", "choose a --dir of letters"),
        ("closed/inner", "cannot enter"),
        ("file", "cannot lay the task out in"),
    ],
)
def test_a_directory_that_cannot_be_used_is_one_line_and_left_alone(root: Path, directory: str, message: str) -> None:
    notes = root / "foreign" / TASK / "notes.txt"
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text("mine")
    (root / "closed").mkdir(mode=0o700, exist_ok=True)
    (root / "file").write_text("")
    done = demo("--dir", str(root / directory))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and message in done.stderr, done.stderr
    assert notes.read_text() == "mine"


def test_a_task_that_there_is_not_is_named() -> None:
    done = demo("--task", "../demo")
    assert done.returncode == 2 and "no bundled task ../demo; there are " in done.stderr
