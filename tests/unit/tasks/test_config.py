"""The daemon's view of a task: laid out as in the image, every problem in one error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.config import InvalidTaskError, load_task, parse_config
from tasks.metadata import capabilities, checks, metadata, reference_patch
from tests.support.toy_task import CONFIG, lay_out


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    return lay_out(tmp_path, None).bench


def problems(bench: Path) -> list[str]:
    with pytest.raises(InvalidTaskError) as caught:
        load_task(str(bench))
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return [str(problem) for problem in caught.value.problems]


def test_a_task_is_read_whole(bench: Path) -> None:
    task = load_task(str(bench))
    assert (task.id, task.project, task.language) == ("toy-1", "toy", "shell")
    assert task.description.crash_report == ("reports/report.txt",)
    assert task.files.poc == ("pocs/one.txt", "pocs/two.txt")
    assert task.files.security_test is None and task.binary is None


def test_metadata_holds_contents_and_nothing_of_the_grader(bench: Path) -> None:
    (bench / "reports/report.txt").write_bytes(b"caf\xe9 \xe2\x82\xac\r\n")
    task = load_task(str(bench))
    body = metadata(task, str(bench))
    assert sorted(body) == sorted(
        ["id", "project", "language", "source", "task_description", "poc", "build_script", "test_script"]
    )
    assert body["task_description"]["crash_report"] == ["caf\ufffd \u20ac\r\n"]
    assert body["build_script"].startswith("#!/bin/sh") and "tests passed" in body["test_script"]
    assert body["poc"] == [f"{bench}/pocs/one.txt", f"{bench}/pocs/two.txt"]
    assert 'echo "refused"' not in str(body)


def test_capabilities_follow_from_scripts_and_files() -> None:
    text = CONFIG.format(source="/src/toy")
    full = parse_config(text.encode())
    assert checks(full) == ["build", "poc", "function_test", "intent_test"]
    assert capabilities(full)["poc_count"] == 2
    without_test = parse_config(text.replace("  test: scripts/test.sh\n", "").encode())
    assert checks(without_test) == ["build", "poc"]
    without_poc = parse_config(text.replace("  poc:\n    - pocs/one.txt\n    - pocs/two.txt\n", "  poc: []\n").encode())
    assert checks(without_poc) == ["build", "function_test", "intent_test"]
    without_run = parse_config(text.replace("  run: scripts/run.sh\n", "  run: null\n").encode())
    assert not capabilities(without_run)["can_run_poc"] and capabilities(without_run)["poc_count"] == 2


def test_the_reference_patch_is_the_files_bytes(bench: Path) -> None:
    task = load_task(str(bench))
    (bench / "diffs/patch.diff").write_bytes(b"\xff\r\n\0")
    assert reference_patch(task, str(bench)) == b"\xff\r\n\0"
    (bench / "diffs/patch.diff").unlink()
    assert reference_patch(task, str(bench)) == b""


def test_no_task_at_all(tmp_path: Path) -> None:
    assert problems(tmp_path / "nowhere") == [f"config.yaml: {tmp_path}/nowhere/config.yaml does not exist"]


def test_every_unusable_file_is_listed(bench: Path) -> None:
    (bench / "scripts/build.sh").unlink()
    (bench / "scripts/run.sh").unlink()
    (bench / "scripts/run.sh").symlink_to("/etc/hostname")
    (bench / "pocs/one.txt").unlink()
    os.mkfifo(bench / "pocs/one.txt")
    found = problems(bench)
    assert [line.split(":")[1].strip() for line in found] == ["scripts.build", "scripts.run", "files.poc[0]"]
    assert "does not exist" in found[0] and "leaves the task folder" in found[1] and "not a regular file" in found[2]


def test_a_link_inside_the_folder_is_a_file_of_it(bench: Path) -> None:
    (bench / "pocs/two.txt").unlink()
    (bench / "pocs/two.txt").symlink_to("one.txt")
    assert load_task(str(bench)).files.poc[1] == "pocs/two.txt"


def test_a_config_that_is_a_pipe_does_not_block(bench: Path) -> None:
    (bench / "config.yaml").unlink()
    os.mkfifo(bench / "config.yaml")
    assert problems(bench) == [f"config.yaml: {bench}/config.yaml is not a regular file"]


def test_all_problems_of_a_config_come_at_once(bench: Path) -> None:
    config = bench / "config.yaml"
    text = config.read_text().replace("toy-1", "toy 1").replace("language: shell", "language: 7")
    config.write_text(text.replace("sanitizer: none", "sanitizers: none"))
    assert sorted(line.split(":")[1].strip() for line in problems(bench)) == ["id", "language", "sanitizers"]


def test_a_problem_is_one_line_whatever_a_key_is(bench: Path) -> None:
    (bench / "config.yaml").write_bytes((bench / "config.yaml").read_bytes() + b'"\\e[2J\\nid": 1\n')
    assert problems(bench) == ["config.yaml: ?[2J?id: unknown key"]
