"""Validation names the right file and key for every way in which a dataset can be broken."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.folder import read_dataset
from tasks.manifest import check_images_lock
from tests.unit.tasks.folders import CONFIG, DOCKERFILE, TASK_ID, apply_step, write, write_dataset

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "broken_folders.yaml").read_text("utf-8"))


def test_the_sample_has_no_problems(tmp_path: Path) -> None:
    dataset = read_dataset(str(write_dataset(tmp_path)))
    assert dataset.all_problems() == []
    assert dataset.tasks[0].base == "debian:bookworm-slim"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"].replace(" ", "-"))
def test_every_problem_of_a_broken_folder_is_named(tmp_path: Path, case: dict[str, Any]) -> None:
    path = write_dataset(tmp_path)
    for step in case["do"]:
        apply_step(path, step)
    dataset = read_dataset(str(path))
    problems = dataset.all_problems() + check_images_lock(dataset)
    found = "\n".join(map(str, problems))
    assert sorted((problem.file, problem.key) for problem in problems) == sorted(
        (file, key) for file, key, _ in case["problems"]
    ), found
    for file, key, part in case["problems"]:
        assert any((p.file, p.key) == (file, key) and part in p.message for p in problems), found


def test_there_are_many_cases() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) >= 40


def test_ids_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    path = write_dataset(tmp_path)
    (path / TASK_ID).rename(path / "moved")
    write_dataset(tmp_path)
    (path / "moved").rename(path / "Sample-1")
    apply_step(path, {"replace": "Sample-1/sse/config.yaml", "old": "id: sample-1", "new": "id: Sample-1"})
    dataset = read_dataset(str(path))
    assert [str(problem) for problem in dataset.all_problems()] == [
        "sample-1: id: differs from Sample-1 only in case; expected another id"
    ]


@pytest.mark.parametrize(
    "copies",
    [
        "COPY sse/*.sh /ssebench/scripts/\nCOPY sse/config.yaml /ssebench/\nCOPY sse/reports /ssebench/reports",
        'COPY ["sse/build.sh", "sse/run.sh", "sse/test.sh", "/ssebench/scripts/"]\nWORKDIR /ssebench\n'
        "COPY sse/config.yaml .\nCOPY --chown=root:root --chmod=600 sse/reports reports/",
        "COPY sse/build.sh \\\n  # the others too\n  sse/run.sh sse/test.sh \\\n  /ssebench/scripts/\n"
        "copy ./sse/config.yaml /ssebench/config.yaml\nADD sse/reports/ /ssebench/reports/",
        "RUN <<END\nCOPY nothing /here\nEND\nCOPY sse/ /ssebench/scripts/\nCOPY sse/config.yaml /ssebench/config.yaml\n"
        "COPY sse/reports/crash.txt /ssebench/reports/crash.txt",
        'COPY --chown=root:root --link ["sse/build.sh", "sse/run.sh", "sse/test.sh", "/ssebench/scripts/"]\n'
        "COPY \"sse/config.yaml\" '/ssebench/config.yaml'\nADD\t--chmod=600\tsse/reports\t/ssebench/reports",
        "RUN cat <<<word && echo $((1<<n)) && cat<<x\nCOPY s?e/[bct]*.sh sse/run.s[^a-g] /ssebench/scripts/\n"
        "COPY sse/conf*.yaml /ssebench/config.yaml\nCOPY sse/r* /ssebench/reports",
        "RUN <<-ONE 3<<'TWO'\n\tONE\n\tTWO\nTWO\nCOPY sse/ /ssebench/scripts/\r\nCOPY sse/config.yaml /ssebench/\r\n"
        "WORKDIR /ssebench/reports\r\nCOPY <<END note.txt\r\nCOPY nothing /here\r\nEND\r\nCOPY sse/reports/ .\r\n",
    ],
)
def test_every_way_to_copy_is_understood(tmp_path: Path, copies: str) -> None:
    path = write_dataset(tmp_path)
    kept = [line for line in DOCKERFILE.splitlines() if "ssebench/" not in line.split()[-1] or "pocs" in line]
    text = "\n".join([*kept, "COPY sse/diffs/ /ssebench/diffs/", copies]) + "\n"
    write(path / TASK_ID / "Dockerfile", text.encode())
    assert [str(problem) for problem in read_dataset(str(path)).all_problems()] == []


@pytest.mark.parametrize(
    "text",
    [
        "RUN a\\\n" + "b\\\n" * 200_000,
        "COPY " + "*a" * 400 + "b /ssebench/",
        "COPY " + "sse/*[" * 30_000 + " /",
        "COPY " + "x" * 900_000,
        "COPY " + "'\"" * 400_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_large_dockerfile_takes_no_longer_than_its_size(tmp_path: Path, text: str) -> None:
    path = write_dataset(tmp_path)
    write(path / TASK_ID / "sse" / "pocs" / ("a" * 200), b"")
    write(path / TASK_ID / "Dockerfile", b"\xef\xbb\xbf" + f"{DOCKERFILE}{text}\n".encode())
    assert all(problem.key == "COPY" for problem in read_dataset(str(path)).all_problems())


def test_a_folder_is_read_however_deep_it_is(tmp_path: Path) -> None:
    path = write_dataset(tmp_path)
    folder = os.open(path / TASK_ID, os.O_RDONLY)
    for _ in range(2500):  # beyond Python's recursion and beyond what one path can name
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (problem,) = read_dataset(str(path)).all_problems()
    assert problem.message == "cannot be read: File name too long"
    subprocess.run(["rm", "-rf", str(path)], check=True)


LINES = st.sampled_from(
    [
        "FROM a",
        "FROM",
        "ARG",
        "ARG SSEBENCH_REGISTRY",
        "COPY",
        "COPY a",
        "COPY sse/ /",
        "COPY . .",
        "COPY [",
        'COPY ["a", 1]',
        "COPY sse/* /ssebench/*",
        "COPY --x",
        "COPY --from=a b c",
        "WORKDIR",
        "WORKDIR ../..",
        "RUN <<E",
        "E",
        "\\",
        "# \\",
        "\tCOPY  a\tb",
        "ADD https://example.org/x /ssebench/",
        "COPY ** /x",
        "COPY ?[ (+ /x",
        "FROM ${SSEBENCH_REGISTRY}/a:b AS c",
        "\ufeffFROM x",
        "\r",
    ]
)


@pytest.fixture(scope="module")
def one_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=60, deadline=None)
@given(dockerfile=st.lists(LINES, max_size=8).map("\n".join), cut=st.integers(0, 900), junk=st.binary(max_size=8))
def test_no_folder_raises_anything(one_dataset: Path, dockerfile: str, cut: int, junk: bytes) -> None:
    write(one_dataset / TASK_ID / "Dockerfile", dockerfile.encode())
    data = CONFIG.encode()
    write(one_dataset / TASK_ID / "sse" / "config.yaml", data[:cut] + junk + data[cut + len(junk) :])
    for problem in read_dataset(str(one_dataset)).all_problems():
        assert str(problem).isprintable() and problem.message
