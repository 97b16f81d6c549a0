"""Other Pythons on this machine, and the project installed for them the way its users do."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SDK_MINIMUM = (3, 10)
_INSTALL_SECONDS = 180


def found_pythons() -> dict[tuple[int, int], str]:
    """Path of an interpreter for every Python 3 version that the SDK supports and this machine has."""
    candidates = glob.glob("/usr/bin/python3.[0-9]*") + glob.glob("/usr/local/bin/python3.[0-9]*")
    candidates += glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3.[0-9]*"))
    found = {}
    for path in candidates:
        version = re.search(r"/python3\.(\d+)\Z", path)
        if version is not None and (3, int(version.group(1))) >= SDK_MINIMUM:
            found[3, int(version.group(1))] = path
    return found


def build_wheel(where: Path) -> Path:
    """A wheel of this repository, as a plain ``pip install`` of it builds one for every Python.

    From a copy, because a build leaves its traces in the source tree. Skips (in CI: fails) without a network.
    """
    source = where / "source"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "tests", "datasets")
    shutil.copytree(REPOSITORY, source, ignore=ignored)
    _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(where), str(source))
    (wheel,) = where.glob("*.whl")
    return wheel


def install(python: str, wheel: Path, where: Path, extra: str = "") -> Path:
    """A virtual environment of ``python`` with the SDK, or ``[extra]``, and what that needs; its interpreter."""
    subprocess.run([python, "-m", "venv", str(where / "venv")], check=True, capture_output=True)
    interpreter = where / "venv" / "bin" / "python"
    _pip(str(interpreter), "install", f"{wheel}{extra}")
    return interpreter


def _pip(python: str, command: str, *arguments: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", command, "-q", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        failure = f"pip {command} failed: {done.stderr[-400:]}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(failure)
