"""Ignore rules: only the given ones count, for names that are files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from grading.ignore import IgnoreRules, folders_of
from grading.objects import ObjectStore


@pytest.fixture
def rules(tmp_path: Path) -> IgnoreRules:
    store = ObjectStore(str(tmp_path / "store"))
    return IgnoreRules(str(tmp_path / "rules"), store.path)


@pytest.mark.parametrize(
    ("files", "ignored", "kept"),
    [
        ({}, [], [b"a", b"b/c"]),
        ({b".gitignore": b"*.o\nout/\n"}, [b"a.o", b"b/c.o", b"out/x", b"b/out/y"], [b"out", b"a", b"b/out"]),
        ({b".gitignore": b"*\n!keep\n"}, [b"a", b"b/keep"], [b"keep"]),
        ({b"d/.gitignore": b"/x\n"}, [b"d/x"], [b"x", b"d/e/x"]),
        ({b".gitignore": b":m\n"}, [b":m", b"d/:m"], [b":(top)x", b":"]),
        # A file where there are rules by now is still asked about as a file.
        ({b".gitignore": b"d/\n", b"d/.gitignore": b"*\n"}, [b"d/x"], [b"d"]),
    ],
)
def test_names_are_ignored_as_git_ignores_files(
    rules: IgnoreRules, files: Mapping[bytes, bytes], ignored: list[bytes], kept: list[bytes]
) -> None:
    rules.replace(files)
    assert rules.ignored([*ignored, *kept]) == set(ignored)
    assert rules.ignored([*kept, *ignored]) == set(ignored)


def test_new_rules_replace_what_was_answered(rules: IgnoreRules) -> None:
    rules.replace({b".gitignore": b"a\n", b"d/e/.gitignore": b"b\n"})
    assert rules.ignored([b"a", b"d/e/b"]) == {b"a", b"d/e/b"}
    rules.replace({b".gitignore": b"d/\n"})
    assert rules.ignored([b"a", b"d", b"d/e/b"]) == {b"d/e/b"}


def test_a_directory_of_rules_may_become_a_file_of_rules(rules: IgnoreRules) -> None:
    rules.replace({b".gitignore/.gitignore": b"a\n"})
    rules.replace({b".gitignore": b"b\n"})
    assert rules.ignored([b"a", b"b"]) == {b"b"}
    rules.replace({b".gitignore/.gitignore": b"a\n"})
    assert rules.ignored([b".gitignore/a", b"b"]) == {b".gitignore/a"}


def test_the_folders_of_a_path_come_from_the_top() -> None:
    assert list(folders_of(b"a/b/c")) == [b"a", b"a/b"]
    assert list(folders_of(b"a")) == []
