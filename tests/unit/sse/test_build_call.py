"""The build script's call in a test script: replaced by a comment in every form, nothing else touched."""

from __future__ import annotations

import subprocess

import pytest

from sse.build_call import without_build_call

CALL = "/ssebench/scripts/build.sh"
COMMENT = "# The build script above runs here."


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        f"bash {CALL}",
        f"sh -eu {CALL}",
        f"bash -o pipefail -e {CALL}",
        f"/bin/bash {CALL}",
        f". {CALL}",
        f"source {CALL}",
        f"exec time -p {CALL}",
        f'"{CALL}"',
        f"bash '{CALL}'",
        f"{CALL} || exit 1",
        f'{CALL} || exit "$?"',
        f"{CALL} >/dev/null 2>&1",
        f"{CALL} &>>build.log;",
        f"{CALL} # first",
        "/some/root/ssebench/scripts/build.sh",
        "$ROOT/ssebench/scripts/build.sh",
        '"${ROOT}/ssebench/scripts/build.sh"',
        '"$(dirname "$0")/build.sh"',
        '"$(dirname "$0")"/build.sh',
        'bash "$(dirname -- "${BASH_SOURCE[0]}")/build.sh"',
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_command_that_is_the_call_becomes_a_comment(call: str, end: str) -> None:
    lines = ["#!/bin/bash", "set -e", call, "make test", ""]
    assert without_build_call(end.join(lines)) == end.join([*lines[:2], COMMENT, *lines[3:]])


@pytest.mark.parametrize(
    "command, left",
    [
        ("if ! CALL; then\n  exit 1\nfi", "if ! true; then\n  exit 1\nfi"),
        ("if make; then\n  CALL\nfi", "if make; then\n  true\nfi"),
        ("cd /src/x && bash CALL", "cd /src/x && true"),
        ("cd /src/x&&CALL", "cd /src/x&&true"),
        ("ls *.so || CALL", "ls *.so || true"),
        ("CALL && make check", "true && make check"),
        ("CALL >log && make check", "true >log && make check"),
        ("CALL || exit 1; make check", "true || exit 1; make check"),
        ("CALL 2>&1 | tee log", "true 2>&1 | tee log"),
        ("CALL || { echo no; exit 1; }", "true || { echo no; exit 1; }"),
        ("(CALL)", "(true)"),
        ("out=$(CALL)", "out=$(true)"),
        ("`CALL`", "`true`"),
        ("BUILD=CALL\n$BUILD", "BUILD=true\n$BUILD"),
        ("MODE=asan CALL -j4", "MODE=asan true -j4"),
        ("timeout 60 bash -e CALL", "timeout 60 true"),
        ("bash -c 'cd x && CALL'", "bash -c 'cd x && true'"),
        ("CALL \\\n  --fast", "true \\\n  --fast"),
        ("env A=1 \\\n  CALL\nmake", "env A=1 \\\n  true\nmake"),
    ],
)
def test_a_call_inside_a_command_keeps_the_script_valid(command: str, left: str) -> None:
    script = without_build_call(command.replace("CALL", CALL) + "\n")
    kept = [line for line in script.splitlines() if not line.lstrip().startswith("# The build script above runs here")]
    assert "\n".join(kept) == left and len(kept) == len(script.splitlines()) - 1
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    "line",
    [
        "./build.sh",
        f"# see {CALL}",
        f"# see {CALL} \\",
        "scripts/build.sh",
        "make build.sh",
        f"{CALL}.orig",
        f"vendor{CALL}",
        "tools/ssebench/scripts/build.sh",
    ],
)
def test_other_lines_stay(line: str) -> None:
    assert without_build_call(f"{line}\r\n") == f"{line}\r\n"


@pytest.mark.parametrize("script", ["", "\n", "build.sh", "build.sh\\", "build.sh\\\n", "x\u2028build.sh\x0b\\\\\ny"])
def test_a_script_without_the_call_is_the_same(script: str) -> None:
    assert without_build_call(script) == script
