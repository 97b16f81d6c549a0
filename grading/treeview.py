"""What is known of the agent's tree, and how it differs from the base.

Runs as: root, on what the readers report; it opens nothing of the agent's.
Distrusts: names and contents; a file may be gone or different each time it is asked for.
Promises: after ``refresh`` every file that is not ignored was read since it last changed; ``changes`` says what turns
  the base into the agent's tree, ignored files aside.
Does not promise: one moment's picture of a tree that changes meanwhile.
Checked by: tests/system/test_capture_cases.py, tests/system/test_capture_properties.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from zlib import crc32

from grading.baseline import Baseline
from grading.ignore import IgnoreRules, folders_of
from grading.objects import Blob, BlobWriter, Change, ObjectStore
from shell.accounts import is_isolated
from shell.errors import SSEBenchError
from shell.reader import Content, ReaderProcess, ReadRequest
from shell.turns import Turns, give_turn, in_parallel

_RULES = b".gitignore"
# Far more than any patch holds, and little enough for a disk.
_VOLUME_BYTES = 4 << 30
_RULES_BYTES = 1 << 24
_PIECE = 2000
_CAPTURED = frozenset({b"f", b"x", b"l"})


class CaptureError(SSEBenchError):
    """The agent's changes could not be captured; the message says why."""


class TreeView:
    """The agent's tree as ``readers`` report it; begins knowing nothing."""

    def __init__(
        self, readers: list[ReaderProcess], baseline: Baseline, store: ObjectStore, rules: IgnoreRules
    ) -> None:
        self._readers = readers
        self._baseline = baseline
        self._tracked = baseline.tracked
        self._store = store
        self._rules = rules
        # Entries that can be captured: path to kind, see shell.tree_channel.
        self._entries: dict[bytes, bytes] = {}
        # Entries that cannot: neither file nor link, closed, or with too long a name.
        self._left_out: dict[bytes, bytes] = {}
        # Directories whose names cannot be read, each with a slash at its end.
        self._closed: set[bytes] = set()
        # Files of the base that are not in the tree.
        self._missing: set[bytes] = set(baseline.files)
        # Entries that were not read since they last changed, and those of them that are ignored.
        self._unread: set[bytes] = set()
        self._hidden: set[bytes] = set()
        # Those whose content or kind differs from the base's.
        self._differing: dict[bytes, Blob] = {}
        # How many bytes the contents of those have that are stored.
        self._volume = 0
        self._rule_files: dict[bytes, bytes] = {}
        self._base_blobs: dict[bytes, Blob] = {}
        rules.replace({})

    def refresh(self) -> None:
        """Learn what changed since the last time, and read it."""
        reports: list[list[tuple[bytes, bytes]]] = []
        in_parallel([lambda reader=reader: reports.append(reader.scan()) for reader in self._readers])  # type: ignore[misc]
        turns = Turns()
        rules_changed = set()
        for report in reports:
            for kind, path in report:
                self._note(kind, path)
                if path == _RULES or path.endswith(b"/" + _RULES):
                    rules_changed.add(path)
                turns.take()
        if rules_changed:
            self._refresh_rules(rules_changed)
        self._refuse_long_names()
        self._read_visible()

    def notes(self) -> list[str]:
        """What is in the tree and never captured."""
        words = {b"s": "no file, directory or link", b"u": "closed to the agent's user and not his own"}
        return [f"{os.fsdecode(path)!a} is {words[kind]}" for path, kind in self._left_out.items() if kind in words] + [
            f"{os.fsdecode(path)!a} is {words[b'u']}" for path in self._closed
        ]

    def changes(self) -> tuple[Change, ...]:
        """What turns the base into this tree, sorted by path."""
        turns = Turns()
        after = {}
        for path in self._visible(self._differing):
            after[path] = self._differing[path]
            turns.take()
        deleted = self._deleted(after)
        found = []
        for path in sorted({*after, *deleted}):
            found.append(Change(path, self._base_blob(path), after.get(path)))
            turns.take()
        return tuple(found)

    def needed_objects(self) -> Iterator[str]:
        """The ids of what later captures may still refer to without reading it again."""
        return (blob.oid for blob in self._differing.values())

    def _note(self, kind: bytes, path: bytes) -> None:
        if path.endswith(b"/"):
            (self._closed.add if kind == b"u" else self._closed.discard)(path)
            return
        self._forget_content(path)
        self._entries.pop(path, None)
        self._left_out.pop(path, None)
        self._unread.discard(path)
        self._hidden.discard(path)
        if kind in _CAPTURED:
            self._entries[path] = kind
            self._unread.add(path)
        elif kind != b"d":
            self._left_out[path] = kind
        # What is there and cannot be read counts as unchanged; a named pipe in a file's place does not.
        if kind not in (b"d", b"s"):
            self._missing.discard(path)
        elif path in self._baseline.files:
            self._missing.add(path)

    def _visible(self, paths: Iterable[bytes]) -> list[bytes]:
        """Those of ``paths`` that are not ignored."""
        known = list(paths)
        hidden = self._rules.ignored([path for path in known if path not in self._tracked])
        return [path for path in known if path not in hidden]

    def _deleted(self, after: dict[bytes, Blob]) -> list[bytes]:
        """The files of the base that the patch has to delete."""
        # What is below a closed directory counts as unchanged, like a closed file.
        missing = [path for path in self._missing if not self._closed or not self._is_closed(path)]
        visible = set(self._visible(missing))
        turns = Turns()
        above: set[bytes] = set()
        for path in after:
            above.update(folders_of(path))
            turns.take()
        return [path for path in missing if path in visible or _in_the_way(path, after, above)]

    def _forget_content(self, path: bytes) -> None:
        blob = self._differing.pop(path, None)
        if blob is not None:
            self._volume -= blob.size

    def _is_closed(self, path: bytes) -> bool:
        return any(folder + b"/" in self._closed for folder in folders_of(path))

    def _base_blob(self, path: bytes) -> Blob | None:
        """The base's version of a file, put into the store; None when the base has none."""
        base = self._baseline.files.get(path)
        if base is None:
            return None
        blob = self._base_blobs.get(path)
        if blob is not None and self._store.holds(blob.oid):
            return blob
        writer = BlobWriter(self._store, base.size)
        digest = hashlib.sha256()
        try:
            for piece in self._baseline.content(path):
                digest.update(piece)
                writer.write(piece)
            if digest.digest() != base.digest:
                raise CaptureError(f"the kept copy of {os.fsdecode(path)!a} is not what it was at start-up")
            blob = self._base_blobs[path] = Blob(base.kind, writer.finish(), base.size)
        except BaseException:
            writer.discard()
            raise
        return blob

    def _refresh_rules(self, changed: set[bytes]) -> None:
        for path in changed:
            self._rule_files.pop(path, None)
        requests = [ReadRequest(path) for path in changed if self._entries.get(path) in (b"f", b"x")]
        self._share(requests, _RuleReading(self._rule_files))
        self._rules.replace(self._rule_files)
        self._unread |= self._hidden
        self._hidden.clear()

    def _refuse_long_names(self) -> None:
        for path, kind in self._left_out.items():
            if kind == b"n":
                raise CaptureError(f"a path is longer than 4095 bytes, git cannot store it: {path[:60]!r}...")

    def _read_visible(self) -> None:
        """Read what changed and is not ignored, in pieces that leave others their turn."""
        pending = sorted(self._unread)
        sink = _Reading(self)
        for start in range(0, len(pending), _PIECE):
            piece = pending[start : start + _PIECE]
            visible = self._visible(piece)
            self._share([self._request(path) for path in visible], sink)
            ignored = set(piece).difference(visible)
            self._unread -= ignored
            self._hidden |= ignored
            give_turn()

    def _request(self, path: bytes) -> ReadRequest:
        base = self._baseline.files.get(path)
        return ReadRequest(path) if base is None else ReadRequest(path, base.digest, base.size)

    def _share(self, requests: list[ReadRequest], sink: _RuleReading | _Reading) -> None:
        """Give each request to the reader that keeps the file's directory."""
        parts = len(self._readers)
        shares: list[list[ReadRequest]] = [[] for _ in range(parts)]
        for request in requests:
            shares[crc32(os.path.dirname(request.path)) % parts].append(request)
        in_parallel(
            [
                lambda reader=reader, share=share: reader.read(share, sink)  # type: ignore[misc]
                for reader, share in zip(self._readers, shares, strict=True)
                if share
            ]
        )

    # --- what a reading found

    def found_same(self, path: bytes, kind: bytes) -> None:
        """The content is the base's; the kind may still differ."""
        self._unread.discard(path)
        self._entries[path] = kind
        base = self._baseline.files[path]
        if kind != base.kind:
            blob = self._base_blob(path)
            assert blob is not None
            self.found_different(path, Blob(kind, blob.oid, blob.size))

    def found_different(self, path: bytes, blob: Blob) -> None:
        """The content is ``blob``'s."""
        self._forget_content(path)
        self._volume += blob.size
        self._unread.discard(path)
        self._entries[path] = blob.kind
        self._differing[path] = blob

    def found_missing(self, path: bytes, kind: bytes | None) -> None:
        """There is nothing to read: gone, or of a ``kind`` that is not captured."""
        if kind == b"u" and not is_isolated():
            # Root would have read it: leaving it out would lose a change.
            raise CaptureError(f"{os.fsdecode(path)!a} is closed to its owner; only a daemon of root's can read it")
        self._note(kind or b"d", path)

    def writer(self, size: int) -> BlobWriter:
        """Where the content of a file of ``size`` bytes goes."""
        if self._volume + size > _VOLUME_BYTES:
            raise CaptureError("the changed files hold more than 4 GiB; no patch can hold them")
        return BlobWriter(self._store, size)


class _Reading:
    """Takes what the readers read into the view."""

    def __init__(self, view: TreeView) -> None:
        self._view = view

    def same(self, request: ReadRequest, kind: bytes) -> None:
        self._view.found_same(request.path, kind)

    def content(self, request: ReadRequest, kind: bytes, size: int) -> Content:
        return _Arriving(self._view, request.path, kind, size)

    def gone(self, request: ReadRequest) -> None:
        self._view.found_missing(request.path, None)

    def unreadable(self, request: ReadRequest) -> None:
        self._view.found_missing(request.path, b"u")

    def too_big(self, request: ReadRequest) -> None:
        raise CaptureError(f"{os.fsdecode(request.path)!a} is larger than 1 GiB; no patch can hold it")


class _Arriving:
    def __init__(self, view: TreeView, path: bytes, kind: bytes, size: int) -> None:
        self._view, self._path, self._kind, self._size = view, path, kind, size
        self._writer = view.writer(size)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def finish(self) -> None:
        self._view.found_different(self._path, Blob(self._kind, self._writer.finish(), self._size))

    def discard(self) -> None:
        self._writer.discard()


class _RuleReading:
    """Collects the text of ``.gitignore`` files. What cannot be read, or is absurdly large, holds no rules."""

    def __init__(self, files: dict[bytes, bytes]) -> None:
        self._files = files

    def same(self, request: ReadRequest, kind: bytes) -> None:
        pass

    def content(self, request: ReadRequest, kind: bytes, size: int) -> Content:
        return _RuleText(self._files, request.path, kind)

    def gone(self, request: ReadRequest) -> None:
        pass

    unreadable = too_big = gone


class _RuleText:
    def __init__(self, files: dict[bytes, bytes], path: bytes, kind: bytes) -> None:
        self._files, self._path, self._kind = files, path, kind
        self._text = b""

    def write(self, data: bytes) -> None:
        if len(self._text) <= _RULES_BYTES:
            self._text += data

    def finish(self) -> None:
        # git reads no rules through a link.
        if self._kind != b"l" and len(self._text) <= _RULES_BYTES:
            self._files[self._path] = self._text

    def discard(self) -> None:
        self._text = b""


def _in_the_way(path: bytes, after: dict[bytes, Blob], above: set[bytes]) -> bool:
    """Whether a new file needs ``path`` to be a directory, or a directory on the way to it to be a file."""
    return path in above or any(folder in after for folder in folders_of(path))
