"""Other tools that drive a bash, in an environment of their own: installed from PyPI when asked for with --peers."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

from tests.benchmarks.table import BenchContext, Row, percentile

_PACKAGES = ["swe-rex", "pexpect"]
_PROBE = Path(__file__).with_name("peer_probe.py")


def peer_rows(context: BenchContext, base: Row) -> list[Row]:
    """``true`` through each peer, compared with the row ``base``; none unless peers were asked for."""
    if not context.peers:
        return []
    with context.folder("peers") as folder:
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-qq", *_PACKAGES], check=True)
        rounds = "20" if context.quick else "100"
        done = subprocess.run([python, str(_PROBE), rounds], check=True, stdout=subprocess.PIPE, stderr=sys.stderr)
    return [
        Row(f"{name}: true, p50", p50 := percentile(times, 50), "ms", base.name, p50 / base.value)
        for name, times in json.loads(done.stdout).items()
    ]
