"""A valid dataset of one small task, written into a directory, and the edits that break it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

TASK_ID = "sample-1"

CONFIG = """\
id: sample-1
project: sample
repository: https://example.org/sample
language: c
source: /src/sample
task_description:
  issue: It crashes.
  crash_report:
    - reports/crash.txt
  bug_description: null
scripts:
  build: scripts/build.sh
  run: scripts/run.sh
  test: scripts/test.sh
files:
  patch: diffs/patch.diff
  poc:
    - pocs/one.bin
    - pocs/two.bin
  future_test: diffs/test.diff
sanitizer: address
type: heap-buffer-overflow
trigger_commit: 0a1b2c
patch_commit: d3e4f5
reference:
  - https://example.org/advisory
originality: crafted
"""

DOCKERFILE = """\
ARG SSEBENCH_REGISTRY
FROM ${SSEBENCH_REGISTRY}/debian:bookworm-slim
COPY project/ /src/sample/
COPY sse/config.yaml /ssebench/config.yaml
COPY sse/build.sh sse/run.sh sse/test.sh /ssebench/scripts/
COPY sse/reports/ /ssebench/reports/
COPY sse/pocs/ /ssebench/pocs/
COPY sse/diffs/ /ssebench/diffs/
"""

FILES = {
    "Dockerfile": DOCKERFILE,
    "project/main.c": "int main(void) { return 0; }\n",
    "sse/config.yaml": CONFIG,
    "sse/build.sh": "#!/bin/sh\ncc main.c\n",
    "sse/run.sh": '#!/bin/sh\n./a.out "$1"\n',
    "sse/test.sh": "#!/bin/sh\n/ssebench/scripts/build.sh\n./a.out\n",
    "sse/reports/crash.txt": "boom\n",
    "sse/pocs/one.bin": "1",
    "sse/pocs/two.bin": "2",
    "sse/diffs/patch.diff": "secret of the grader\n",
    "sse/diffs/test.diff": "another secret of the grader\n",
}


def write_dataset(root: Path) -> Path:
    """A dataset folder with the sample task and nothing wrong."""
    dataset = root / "samples"
    for name, text in FILES.items():
        write(dataset / TASK_ID / name, text.encode())
    for script in ("build", "run", "test"):
        (dataset / TASK_ID / "sse" / f"{script}.sh").chmod(0o755)
    write(dataset / "dataset.yaml", b"version: samples-v1\n")
    return dataset


def write(path: Path, data: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def apply_step(dataset: Path, step: dict[str, Any]) -> None:
    """One edit of a case; its paths begin at the dataset's folder, or with ``~/`` at the sample task's."""
    (kind, value), *rest = step.items()
    more = dict(rest)
    path = dataset / str(value).replace("~", TASK_ID, 1)
    if kind == "write":
        write(path, str(more["text"]).encode())
    elif kind == "hex":
        write(path, bytes.fromhex(more["data"]))
    elif kind == "replace":
        text = path.read_text("utf-8")
        assert str(more["old"]) in text, f"{path} does not hold {more['old']!r}"
        path.write_text(text.replace(str(more["old"]), str(more["new"])), "utf-8")
    elif kind == "remove":
        path.unlink()
    elif kind == "link":
        path.unlink(missing_ok=True)
        path.symlink_to(more["to"])
    elif kind == "fifo":
        path.unlink()
        os.mkfifo(path)
    elif kind == "folder":
        path.unlink(missing_ok=True)
        path.mkdir()
    elif kind == "mode":
        path.chmod(int(more["to"], 8))
    elif kind == "rename":
        path.rename(dataset / more["to"])
    else:
        raise AssertionError(f"unknown step {kind}")
