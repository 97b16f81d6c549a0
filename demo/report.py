"""The grade as a table for a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def read_grade(results: Path) -> dict[str, Any]:
    """The evaluator's patch_result; empty when there is none."""
    try:
        written = json.loads((results / "result.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    grade = written.get("patch_result")
    return grade if isinstance(grade, dict) else {}


def print_grade(task: str, grade: dict[str, Any]) -> None:
    """Print one row a check, then the status and the first failure."""
    table = Table(title=f"Grade of {task}", title_justify="left")
    table.add_column("check")
    table.add_column("result")
    table.add_row("build", _word(grade.get("build_success")))
    table.add_row("proofs of concept", f"{grade.get('pov_passed') or 0} of {grade.get('pov_total') or 0} pass")
    table.add_row("tests", _word(grade.get("func_test_success")))
    table.add_row("hidden tests", _word(grade.get("intent_test_success")))
    table.add_row("status", str(grade.get("status", "no grade")), style="bold")
    Console().print(table)
    if grade.get("error_msg"):
        print(f"first failure: {grade['error_msg']}")


def _word(success: bool | None) -> str:
    return {True: "passes", False: "fails", None: "not run"}[success]
