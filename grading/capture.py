"""The agent's changes: his tree against the base, as a patch and as a list of files.

Runs as: root; the tree is read by helpers with the agent's rights (shell.reader), git works on private data only.
Distrusts: the tree, its ``.git``, and the agent, who may stop or kill the helpers or change files while they are read.
Promises: nothing in the tree or its ``.git`` is changed or obeyed; calls at the same time share one run; a failure is a
  CaptureError; ``final`` trusts nothing that was known before and reads every file.
Does not promise: one moment's picture of a tree that changes meanwhile.
Checked by: tests/system/test_capture*.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import gevent
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

from grading.baseline import Baseline
from grading.ignore import IgnoreRules
from grading.objects import Change, ObjectStore
from grading.patchfile import quote_headers, read_whole
from grading.state import RunState
from grading.treeview import CaptureError, TreeView
from shell.accounts import Account
from shell.errors import SSEBenchError
from shell.reader import ReaderDiedError, ReaderProcess
from shell.turns import Turns

_log = logging.getLogger(__name__)
# Two readers use two cores; more only compete with what the agent runs. For a small tree one is done sooner.
_PARTS = max(1, min(2, os.cpu_count() or 1))
_FILES_FOR_TWO = 2000
# A helper that died was killed with the agent's other processes, or by the agent: the next one usually lives.
_ATTEMPTS = 6
_RETRY_S = 0.05
# Calls that come this close together are answered by one run.
_GATHER_S = 0.001
_REMEMBERED_PATCH_BYTES = 1 << 24
_SHOWN_NOTES = 20

_T = TypeVar("_T")
Status = Literal["modified", "added", "deleted"]
_Need = Literal["changes", "patch", "counts"]


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One file of ``/files``: its path (as os.fsdecode gives it), what happened, and lines added and deleted."""

    path: str
    status: Status
    additions: int
    deletions: int


@dataclass
class Captured:
    """One capture. ``before`` and ``after`` are trees in the private repository that hold just what changed."""

    changes: tuple[Change, ...]
    before: str
    after: str
    patch: bytes | None = None
    counts: dict[bytes, tuple[int, int]] | None = None


@dataclass
class _Run:
    """A capture that has not begun yet: who comes before it begins shares it."""

    needs: set[_Need] = field(default_factory=set)
    result: AsyncResult[_Outcome] = field(default_factory=AsyncResult)


@dataclass(frozen=True, slots=True)
class _Outcome:
    captured: Captured
    patch: bytes


class _DiedError(CaptureError):
    """A helper ended early; worth another attempt."""


class Capture:
    """The changes in ``source`` against the clean clone ``repo`` (or against ``source`` itself at start-up)."""

    def __init__(self, source: str, repo: str, state: RunState, agent: Account) -> None:
        self._source = source
        self._state = state
        self._agent = agent
        self.baseline = Baseline(source, repo, state, agent)
        self._folder = os.path.join(state.path, "capture")
        self._store: ObjectStore | None = None
        self._readers: list[ReaderProcess] = []
        # What readers knew that were ended meanwhile; the view is theirs.
        self._saved: list[bytes] = []
        self._view: TreeView | None = None
        self._last: Captured | None = None
        self._lock = BoundedSemaphore(1)
        self._next: _Run | None = None
        self._greenlets: set[gevent.Greenlet[..., None]] = set()
        self._base: AsyncResult[None] = AsyncResult()
        self._pristine: AsyncResult[None] = AsyncResult()

    def start(self) -> None:
        """Begin to take the base. What the agent could change is read before this returns; the rest follows meanwhile.

        Must be called before the agent can act. Raises CaptureError when the source tree or its commit is unreadable.
        """
        try:
            self.baseline.note_initial()
            if self.baseline.needs_source:
                self.baseline.take()
        except (SSEBenchError, OSError) as error:
            raise CaptureError(f"the base of {self._source} cannot be taken: {error}") from error
        self._spawn(self._prepare)

    def diff(self) -> bytes:
        """The patch that turns the base into the agent's tree; empty when nothing changed."""
        return self._share("patch").patch

    def files(self) -> list[ChangedFile]:
        """The files in ``diff``, sorted by path."""
        captured = self._share("counts").captured
        counts = captured.counts or {}
        turns = Turns()
        files = []
        for change in captured.changes:
            files.append(_changed_file(change, counts.get(change.path, (0, 0))))
            turns.take()
        return files

    def final(self, patch_path: str) -> Captured:
        """Capture with nothing taken for granted: new readers, every file read. The patch goes to ``patch_path``."""
        self._wait(self._base)
        with self._lock:
            self._forget()
            captured = self._capture()
            self._guard(lambda: self._write_patch(captured, patch_path))
            self._rest()
            return captured

    def wait_for_base(self) -> None:
        """Return when the base was taken; CaptureError when it cannot be."""
        self._wait(self._base)

    def wait_for_pristine(self) -> None:
        """Return when the pristine copy of the clean clone is whole; CaptureError when it cannot be made."""
        self._wait(self._base)
        self._wait(self._pristine)
        try:
            # Again, for the case that it failed: the disk may have been full.
            self.baseline.keep_pristine()
        except (SSEBenchError, OSError) as error:
            raise CaptureError(f"the clean clone could not be kept: {error}") from error

    def close(self) -> None:
        """End everything that runs for captures."""
        gevent.killall(list(self._greenlets))
        self._forget()

    # --- the base

    def _prepare(self) -> None:
        try:
            if not self.baseline.files:
                self.baseline.take()
            self._store = ObjectStore(self._folder)
        except (SSEBenchError, OSError) as error:
            _log.error("the base cannot be taken: %s", error)
            self._base.set_exception(CaptureError(f"the base could not be taken: {error}"))
            return
        self._base.set(None)
        try:
            # The first capture reads the whole tree: better now than when somebody waits.
            self._share("changes")
        except CaptureError as error:
            _log.warning("%s", error)
        try:
            self.baseline.keep_pristine()
        except (SSEBenchError, OSError) as error:
            _log.error("the clean clone cannot be kept: %s", error)
        finally:
            self._pristine.set(None)

    def _wait(self, result: AsyncResult[None]) -> None:
        result.get()

    # --- sharing

    def _share(self, need: _Need) -> _Outcome:
        """Join the run that is about to begin, or arrange one. A run that has begun may have missed a change."""
        self._wait(self._base)
        run = self._next
        if run is None:
            run = self._next = _Run()
            self._spawn(self._serve, run)
        run.needs.add(need)
        outcome: _Outcome | None = run.result.get()
        assert outcome is not None
        return outcome

    def _serve(self, run: _Run) -> None:
        gevent.sleep(_GATHER_S)
        try:
            with self._lock:
                self._next = None
                captured = self._capture()
                patch = self._guard(lambda: self._complete(captured, run.needs))
                self._rest()
            run.result.set(_Outcome(captured, patch))
        except CaptureError as error:
            run.result.set_exception(error)
        except BaseException as error:
            # Whoever waits must hear of it, also when this greenlet is ended from outside.
            run.result.set_exception(CaptureError("the capture was ended"))
            if not isinstance(error, gevent.GreenletExit):
                raise

    def _spawn(self, function: Callable[..., None], *arguments: object) -> None:
        greenlet = gevent.spawn(function, *arguments)
        self._greenlets.add(greenlet)
        greenlet.rawlink(self._greenlets.discard)

    # --- one capture, under the lock

    def _capture(self) -> Captured:
        for attempt in range(_ATTEMPTS):
            try:
                return self._guard(self._capture_once)
            except _DiedError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise CaptureError(f"{error}, {_ATTEMPTS} times in a row") from error
                gevent.sleep(_RETRY_S * (attempt + 1))
        raise AssertionError("unreachable")

    def _capture_once(self) -> Captured:
        view = self._current_view()
        view.refresh()
        changes = view.changes()
        if self._last is not None and self._last.changes == changes:
            return self._last
        assert self._store is not None
        blobs = [blob for change in changes for blob in (change.before, change.after) if blob]
        self._store.keep({blob.oid for blob in blobs}.union(view.needed_objects()))
        before = self._store.tree({change.path: change.before for change in changes if change.before})
        after = self._store.tree({change.path: change.after for change in changes if change.after})
        self._last = Captured(changes, before, after)
        self._log_left_out(view.notes())
        return self._last

    def _log_left_out(self, notes: list[str]) -> None:
        for note in notes[:_SHOWN_NOTES]:
            _log.info("left out of the capture: %s", note)
        if len(notes) > _SHOWN_NOTES:
            _log.info("left out of the capture: %d more", len(notes) - _SHOWN_NOTES)

    def _current_view(self) -> TreeView:
        assert self._store is not None
        if not self._readers:
            self._start_readers()
        if self._view is None:
            rules = IgnoreRules(os.path.join(self._folder, "rules"), self._store.path)
            self._view = TreeView(self._readers, self.baseline, self._store, rules)
        return self._view

    def _start_readers(self) -> None:
        root = os.fsencode(self._source)
        parts = _PARTS if len(self.baseline.files) >= _FILES_FOR_TWO else 1
        for part in range(parts):
            self._readers.append(ReaderProcess(root, self._agent, part, parts))
        for reader, saved in zip(self._readers, self._saved, strict=False):
            reader.load(saved)
        self._saved = []

    def _rest(self) -> None:
        """Once the agent's phase is over, no process with his uid is to stay: keep only what the readers know."""
        if not self._state.phase_ended() or self._view is None:
            return
        # Whoever ends the phase may end a reader first: the next one then begins from nothing.
        with contextlib.suppress(CaptureError):
            self._saved = self._guard(lambda: [reader.save() for reader in self._readers])
        self._end_readers()

    def _complete(self, captured: Captured, needs: set[_Need]) -> bytes:
        """Add what is asked for beyond the changes; the patch, or nothing when nobody wants it."""
        assert self._store is not None
        if "counts" in needs and captured.counts is None:
            captured.counts = self._store.line_counts(captured.before, captured.after) if captured.changes else {}
        if "patch" not in needs:
            return b""
        if captured.patch is not None:
            return captured.patch
        path = os.path.join(self._folder, "current.patch")
        self._write_patch(captured, path)
        patch = read_whole(path)
        os.unlink(path)
        if len(patch) <= _REMEMBERED_PATCH_BYTES:
            captured.patch = patch
        return patch

    def _write_patch(self, captured: Captured, path: str) -> None:
        assert self._store is not None
        self._store.write_patch(captured.before, captured.after, path)
        quote_headers(path, captured.changes)

    def _guard(self, call: Callable[[], _T]) -> _T:
        """Run a step; after any failure the next capture begins from nothing."""
        try:
            return call()
        except ReaderDiedError as error:
            self._forget()
            raise _DiedError(str(error)) from error
        except (SSEBenchError, OSError) as error:
            self._forget()
            raise CaptureError(str(error)) from error
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        self._end_readers()
        self._saved = []
        self._view = None
        self._last = None

    def _end_readers(self) -> None:
        # The list is the view's too: emptied, not replaced.
        for reader in self._readers:
            reader.close()
        self._readers.clear()


def _changed_file(change: Change, counts: tuple[int, int]) -> ChangedFile:
    status: Status = "added" if change.before is None else "deleted" if change.after is None else "modified"
    return ChangedFile(os.fsdecode(change.path), status, *counts)
