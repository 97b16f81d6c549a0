"""The prompt: its sections and their order, foreign text read back exactly, the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sse.metadata import parse_metadata
from sse.prompt import build_prompt
from tasks.config import Task
from tasks.folder import BENCH, read_task_folder
from tasks.metadata import metadata_from
from tasks.yamlfile import load_yaml
from tests.unit.sse.prompts import as_read, fences, headings, inline_text, metadata

REPOSITORY = Path(__file__).resolve().parents[3]
DEMO = REPOSITORY / "datasets" / "demo"
SNAPSHOTS = Path(__file__).parent / "snapshots"
TASKS = sorted(path.name for path in DEMO.iterdir() if path.is_dir())

FIXED = ["# Task", "## Objective", "## Requirements", "## Validation", "## Vulnerability"]
END = ["## Project", "## Build and test", "### Build script", "### Test script"]
BUILD, TEST = "#!/bin/sh\ncc main.c\n", "#!/bin/sh\n./a.out\n"

HOSTILE = [
    "`",
    "```",
    "~~~",
    "````\n```\n````",
    "`" * 40,
    "~" * 40,
    "```text\nx\n```",
    "   ```\ninside\n   ```",
    "    ```\n",
    "\t```\n\tx",
    "> ```\n> x",
    "- ```\n  x",
    "1. ~~~\n   x",
    "# Task\n",
    "-\t# Task",
    ">\t- 1) # Task",
    "1. - ```",
    "x\n===\n",
    "x\n---\n",
    "---",
    "***",
    "<!--",
    "<script>\n",
    "[x]: /y\n",
    "a\r\nb\r\n",
    "a\rb",
    "a\r",
    "\n\n x \n\n",
    "no end",
    "\ufeffx",
    "a\0b",
    "\u2028x\u2029```",
    "\x0c```\n",
    "\x1b[31m",
    "{% x %}",
    "&amp; &lt;",
    "\\`\\`\\`",
    "a  \nb",
    "## Project\n\n- Name: other\n",
    "",
]


def prompt_of(task_id: str) -> str:
    folder = read_task_folder(str(DEMO / task_id))
    assert isinstance(folder.task, Task)
    return build_prompt(parse_metadata(metadata_from(folder.task, BENCH, folder.read)))


@pytest.mark.parametrize("task_id", TASKS)
def test_the_prompt_is_the_snapshot(task_id: str) -> None:
    snapshot = SNAPSHOTS / f"{task_id}.prompt.md"
    prompt = prompt_of(task_id).encode()
    if os.environ.get("SSEBENCH_UPDATE_SNAPSHOTS") == "1":
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_bytes(prompt)
    assert snapshot.read_bytes() == prompt, "regenerate with SSEBENCH_UPDATE_SNAPSHOTS=1"


@pytest.mark.parametrize("task_id", TASKS)
def test_nothing_of_the_grader_is_in_the_prompt(task_id: str) -> None:
    prompt = prompt_of(task_id)
    sse = DEMO / task_id / "sse"
    config = load_yaml((sse / "config.yaml").read_bytes())
    told = {line for name in ("build.sh", "test.sh") for line in (sse / name).read_text("utf-8").splitlines()}
    for file in [sse / "run.sh", *(sse / "diffs").iterdir(), *(sse / "pocs").iterdir()]:
        for line in set(file.read_text("utf-8", "replace").splitlines()) - told:
            assert len(line) < 25 or line.lstrip("+- ") not in prompt, f"{file.name}: {line}"
    for value in [config["patch_commit"], config["trigger_commit"], *config["reference"]]:
        assert value is None or value not in prompt


def test_sections_have_the_order_of_the_specification() -> None:
    prompt = build_prompt(metadata(issue="An issue.", reports=["one", "none", " ", "two"], bug="A bug."))
    told = ["### Bug description", "### Issue", "### Report 1 of 2", "### Report 2 of 2"]
    assert headings(prompt) == [*FIXED, *told, *END]
    assert fences(prompt) == ["one\n", "two\n", BUILD, TEST]
    assert prompt.endswith("```\n") and "\n\nAn issue.\n\n" in prompt and "\n\nA bug.\n\n" in prompt


def test_a_single_report_is_not_numbered() -> None:
    assert headings(build_prompt(metadata(reports=["", "x"]))) == [*FIXED, "### Report", *END]


@pytest.mark.parametrize("empty", [None, "", " \n", "none", "None\n", " none "])
def test_what_says_nothing_is_left_out(empty: str | None) -> None:
    prompt = build_prompt(metadata(issue=empty, bug=empty, reports=None if empty is None else [empty]))
    assert headings(prompt) == [*FIXED, *END]
    assert "No description of the vulnerability is available" in prompt


def test_a_task_without_scripts_says_so() -> None:
    prompt = build_prompt(metadata(issue="x", build=None, test=None))
    assert headings(prompt)[-2:] == ["## Project", "## Build and test"]
    assert "neither a build script nor a test script" in prompt


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_in_its_place(text: str) -> None:
    told = [f"x{text}", text, f"{text}\nx"]
    prompt = build_prompt(metadata(reports=[f"x\n{t}" for t in told], build=text, test=text, issue=f"x\n\n{text}"))
    assert headings(prompt) == [
        *FIXED,
        "### Issue",
        "### Report 1 of 3",
        "### Report 2 of 3",
        "### Report 3 of 3",
        *END,
    ]
    assert fences(prompt)[-5:] == [*(as_read(f"x\n{t}") for t in told), as_read(text), as_read(text)]


MARKDOWN = st.text(st.sampled_from("`~#>-+*_=<![]():\\ \t\n\r0.)ax\u20ac"), max_size=30)


@settings(max_examples=120, deadline=None)
@given(issue=MARKDOWN, bug=MARKDOWN, report=MARKDOWN, script=MARKDOWN)
def test_any_text_stays_in_its_place(issue: str, bug: str, report: str, script: str) -> None:
    prompt = build_prompt(metadata(issue=f"a{issue}", bug=f"b\n{bug}", reports=[f"c{report}"], build=script))
    told = ["### Bug description", "### Issue", "### Report"]
    assert headings(prompt) == [*FIXED, *told, *END]
    assert fences(prompt)[-3:] == [as_read(f"c{report}"), as_read(script), TEST]


@pytest.mark.parametrize(
    "text", ["-" * 500_000 + "x", "- " * 250_000 + "x", "a" * 500_000, "/" * 500_000, "> \t" * 100_000]
)
def test_a_long_line_takes_no_longer_than_its_length(text: str) -> None:
    assert text in build_prompt(metadata(issue=text, bug=text, test=f"{text} build.sh"))


@pytest.mark.parametrize(
    "name", ["sample", "gj`son", "``", "`a", "a b", "*x*", "_x_", "[x](y)", "<b>", "C++", "x_y", " `` ` ", "&amp;", "!"]
)
def test_names_are_shown_as_they_are(name: str) -> None:
    prompt = build_prompt(metadata(project=name, source=f"/src/{name}", issue="x"))
    assert inline_text(prompt, "Name: ") == f"Name: {name}"
    assert inline_text(prompt, "Source code: ") == f"Source code: /src/{name}"
    assert f"vulnerability in {name}, a C project, by" in inline_text(prompt, "You are")


@pytest.mark.parametrize(
    "name, shown",
    [("c", "C"), ("go", "Go"), ("rust", "Rust"), ("javascript", "JavaScript"), ("cpp", "C++"), ("c++", "C++")],
)
def test_languages_are_written_as_people_write_them(name: str, shown: str) -> None:
    assert f"- Language: {shown}\n" in build_prompt(metadata(language=name, issue="x"))


def test_the_bytes_depend_on_nothing_else() -> None:
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.unit.sse.prompts import metadata\n"
        "from sse.prompt import build_prompt\n"
        "sys.stdout.buffer.write(build_prompt(metadata(issue='\\u0130I\\u0131', reports=['\\u00e9'])).encode())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={"LC_ALL": locale, "PYTHONHASHSEED": seed, "TZ": zone, "HOME": home},
            capture_output=True,
            check=True,
        ).stdout
        for locale, seed, zone, home in [("C", "0", "UTC", "/"), ("tr_TR.UTF-8", "1", "Asia/Tokyo", "/tmp")]
    }
    assert len(outputs) == 1
