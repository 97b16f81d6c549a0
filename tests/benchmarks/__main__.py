"""``./run bench [--quick] [--peers] [TOPIC...]``: figures as ratios within one run; asserts nothing on time."""

from daemon.patching import patch

patch()

import argparse
import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

import tests.benchmarks
from tests.benchmarks.table import BenchContext, Row
from tests.support.live import scratch_parent


def topics() -> list[str]:
    """The names of the benchmark modules beside this one."""
    names = [module.name for module in pkgutil.iter_modules(tests.benchmarks.__path__)]
    return sorted(name.removeprefix("bench_") for name in names if name.startswith("bench_"))


def main() -> int:
    """Run the chosen benchmarks and print one table for each."""
    parser = argparse.ArgumentParser(prog="./run bench", description="Figures of this machine, as ratios in one run.")
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"one of {', '.join(topics())}; all without")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller data")
    parser.add_argument("--peers", action="store_true", help="measure other tools too (installed from PyPI)")
    options = parser.parse_args()
    unknown = sorted(set(options.topics) - set(topics()))
    if unknown:
        parser.error(f"unknown topic {', '.join(unknown)}; there are {', '.join(topics())}")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="ssebench-bench-", dir=scratch_parent()) as folder:
        Path(folder).chmod(0o755)
        for topic in options.topics or topics():
            context = BenchContext(Path(folder), quick=options.quick, peers=options.peers)
            module = importlib.import_module(f"tests.benchmarks.bench_{topic}")
            console.print(_table(topic, module.rows(context)))
            for note in context.notes:
                console.print(f"  {note}")
    return 0


def _table(topic: str, rows: list[Row]) -> Table:
    table = Table(title=topic, title_justify="left")
    table.add_column("figure")
    for column in ("value", "ratio", "aim"):
        table.add_column(column, justify="right")
    table.add_column("compared with")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        bound = "" if row.bound is None else f"<= {row.bound:g}"
        table.add_row(row.name, f"{row.value:.3g} {row.unit}", ratio, bound, row.base or "")
    return table


if __name__ == "__main__":
    sys.exit(main())
