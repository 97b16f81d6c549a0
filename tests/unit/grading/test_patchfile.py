"""Headers that git apply would misread are quoted, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from grading.objects import Blob, Change
from grading.patchfile import quote_headers, read_whole

_EMPTY = Blob(b"f", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", 0)
_TEXT = Blob(b"f", "1" * 40, 5)


def quoted(folder: Path, patch: bytes, *changes: Change) -> bytes:
    path = folder / "a.patch"
    path.write_bytes(patch)
    quote_headers(str(path), changes)
    return path.read_bytes()


@pytest.mark.parametrize("name", [b"d /e", b"a b", b"a b/a b", b" ", b"x b/x"])
def test_the_header_of_an_empty_file_with_a_blank_is_quoted(tmp_path: Path, name: bytes) -> None:
    header = b"diff --git a/%s b/%s\n" % (name, name)
    found = quoted(tmp_path, header + b"new file mode 100644\n", Change(name, None, _EMPTY))
    assert found == b'diff --git "a/%s" "b/%s"\nnew file mode 100644\n' % (name, name)


def test_a_header_with_names_below_it_is_left_alone(tmp_path: Path) -> None:
    patch = b"diff --git a/a b b/a b\n--- a/a b\t\n+++ b/a b\t\n@@ -1 +1 @@\n-x\n+y\n"
    assert quoted(tmp_path, patch, Change(b"a b", _TEXT, Blob(b"f", "2" * 40, 5))) == patch


def test_content_that_looks_like_the_header_is_left_alone(tmp_path: Path) -> None:
    content = b"+diff --git a/a b b/a b\n diff --git a/a b b/a b\n"
    patch = b"diff --git a/t b/t\n" + content + b"diff --git a/a b b/a b\nold mode 100644\nnew mode 100755\n"
    found = quoted(tmp_path, patch, Change(b"a b", _TEXT, Blob(b"x", _TEXT.oid, 5)))
    assert content in found
    assert found.endswith(b'\ndiff --git "a/a b" "b/a b"\nold mode 100644\nnew mode 100755\n')


def test_a_large_patch_is_read_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"0123456789" * 300_000)
    assert read_whole(str(path)) == path.read_bytes()
