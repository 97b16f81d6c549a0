"""Rows of the benchmark table: a figure, the row of the same run it is compared with, and the ratio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One figure. ``base`` names the row of this run that ``ratio`` divides by; ``bound`` is the ratio aimed at."""

    name: str
    value: float
    unit: str
    base: str | None = None
    ratio: float | None = None
    bound: float | None = None


@dataclass
class BenchContext:
    """Where a benchmark may write and what it was asked for."""

    scratch: Path
    quick: bool = False
    peers: bool = False
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """A directory for one benchmark, open to all users, gone afterwards."""
        import shutil

        path = self.scratch / name
        path.mkdir(mode=0o755, parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def percentile(values: list[float], percent: float) -> float:
    """The value below which ``percent`` of the sorted values lie (nearest rank)."""
    ordered = sorted(values)
    rank = max(0, min(len(ordered) - 1, round(percent / 100 * len(ordered) + 0.5) - 1))
    return ordered[rank]
