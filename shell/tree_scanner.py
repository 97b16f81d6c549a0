"""What changed in the agent's tree since the last look; part of the program shell.tree_reader.

Runs as: the agent's user under a private group.
Distrusts: names and types, and that anything stays what it is between two system calls.
Promises: every entry whose inode or change time differs from the last scan's is reported, with everything below a
  directory that is gone; so is, once more, what changed so recently that its time cannot tell it from a later change.
  No link is followed. Components called ``.git`` are never looked into.
Does not promise: to notice a write through a mapping of memory at once: the kernel may set the time late.
Checked by: tests/system/test_capture.py, tests/system/test_capture_cases.py.

Standard library only: it is part of a program of another user.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time
import zlib
from typing import Any, NoReturn

from shell.tree_channel import BUFFER_BYTES, STAT, Channel, GoneError, UnreadableError, check_gone, kind_of

PATH_BYTES = 4095
_RECORDS = 2000
# A change less than this before the scan may share its timestamp with a later one: such an entry is reported again.
RACY_NS = 30_000_000
NEVER = (0, 0)


class Closed:
    """Stands in for ``os`` when the tree itself is closed to the agent: everything has to be asked for."""

    @staticmethod
    def refuse(*_arguments: object) -> NoReturn:
        raise PermissionError

    lstat = scandir = readlink = open = refuse


class Folder:
    """What is known of one directory: its key, its subdirectories, and the keys of its files."""

    __slots__ = ("closed", "files", "folders", "key", "mine")

    def __init__(self, mine: bool) -> None:
        self.key = NEVER
        self.folders: tuple[bytes, ...] = ()
        self.files: dict[bytes, tuple[int, int]] = {}
        self.mine = mine
        # Its names could not be read.
        self.closed = False


class TreeScanner:
    """The tree as far as this part of it is concerned: a directory's files belong to exactly one part."""

    def __init__(self, channel: Channel, root: bytes, part: int, parts: int) -> None:
        self._channel = channel
        self._root = root
        self._part, self._parts = part, parts
        self._folders: dict[bytes, Folder] = {}
        self._records: list[bytes] = []
        self._recorded = 0
        # The system's calls, or none of them while the tree itself is closed.
        self.os: Any = os
        self._trusted_ns = 0

    def scan(self) -> bool:
        """Report what changed since the last scan; False when the tree itself is gone."""
        if not self._enter():
            return False
        self._trusted_ns = time.time_ns() - RACY_NS
        pending = [b""]
        while pending:
            path = pending.pop()
            pending.extend(self._scan_folder(path))
            self._channel.heartbeat()
        self._report()
        return True

    def _enter(self) -> bool:
        """Make the tree the working directory, so that every path below is relative and short."""
        try:
            fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except PermissionError:
            try:
                fd = self._channel.ask_for_descriptor(b"d", b"")
            except (GoneError, UnreadableError):
                return False
        except OSError as error:
            check_gone(error)
            return False
        try:
            os.fchdir(fd)
            self.os = os
        except OSError:
            # Relative paths would now mean something else: none may reach the system.
            self.os = Closed
        finally:
            os.close(fd)
        return True

    def _scan_folder(self, path: bytes) -> tuple[bytes, ...]:
        """Compare one directory with what is known of it; its subdirectories."""
        try:
            found = self.look(path or b".")
        except (GoneError, UnreadableError):
            self._forget(path)
            return ()
        if not stat.S_ISDIR(found[0]):
            self._forget(path)
            return ()
        folder = self._folders.get(path)
        if folder is None:
            mine = zlib.crc32(path) % self._parts == self._part
            folder = self._folders[path] = Folder(mine)
        if folder.key != found[1:3]:
            # Noted before the names are read: what is added meanwhile changes the directory again.
            folder.key = found[1:3] if found[2] < self._trusted_ns else NEVER
            if not self._list(path, folder):
                return ()
        if folder.mine:
            self._scan_files(folder)
        return folder.folders

    def _scan_files(self, folder: Folder) -> None:
        lstat = self.os.lstat
        stale = []
        for path, (inode, changed_ns) in folder.files.items():
            try:
                found = lstat(path)
            except OSError:
                stale.append(path)
                continue
            if found.st_ctime_ns != changed_ns or found.st_ino != inode:
                stale.append(path)
        for path in stale:
            self._scan_file(path, folder)

    def _scan_file(self, path: bytes, folder: Folder) -> None:
        try:
            mode, inode, changed_ns, _size = self.look(path)
        except GoneError:
            del folder.files[path]
            folder.key = NEVER
            self._note(b"d", path)
            return
        except UnreadableError:
            folder.files[path] = NEVER
            self._note(b"u", path)
            return
        if stat.S_ISDIR(mode):
            del folder.files[path]
            folder.key = NEVER
            self._note(b"d", path)
            return
        folder.files[path] = (inode, changed_ns) if changed_ns < self._trusted_ns else NEVER
        self._note(kind_of(mode), path)

    def _list(self, path: bytes, folder: Folder) -> bool:
        """Read the names in a directory; False when it vanished."""
        try:
            folders, files = self._names(path)
        except GoneError:
            self._forget(path)
            return False
        except UnreadableError:
            folder.closed = True
            self._note(b"u", path + b"/")
            folders, files = [], []
        else:
            self._open_again(path, folder)
        prefix = path + b"/" if path else b""
        room = PATH_BYTES - len(prefix)
        # Below a path this long nothing can be named: it is reported like a file with too long a name.
        files += [name for name in folders if len(name) > room]
        was_folders = set(folder.folders)
        folder.folders = tuple(prefix + name for name in folders if len(name) <= room)
        for gone in was_folders.difference(folder.folders):
            self._forget(gone)
        if folder.mine:
            now = {prefix + name for name in files}
            for gone in [known for known in folder.files if known not in now]:
                del folder.files[gone]
                self._note(b"d", gone)
            for name in now:
                folder.files.setdefault(name, NEVER)
        return True

    def _names(self, path: bytes) -> tuple[list[bytes], list[bytes]]:
        """The names of subdirectories and of everything else; ``.git`` is never among them."""
        try:
            listing = self.os.scandir(path or b".")
        except PermissionError:
            fd = self._channel.ask_for_descriptor(b"d", path)
            try:
                # A descriptor yields text; the names are bytes again at once.
                with os.scandir(fd) as entries:
                    pairs = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
            finally:
                os.close(fd)
            return split_names(pairs)
        except OSError as error:
            check_gone(error)
            raise GoneError from None
        with listing as entries:
            return split_names([(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries])

    def _forget(self, path: bytes) -> None:
        """A directory is gone, with everything below it."""
        pending = [path]
        while pending:
            path = pending.pop()
            folder = self._folders.pop(path, None)
            if folder is None:
                continue
            pending.extend(folder.folders)
            self._open_again(path, folder)
            for file in folder.files:
                self._note(b"d", file)

    def _open_again(self, path: bytes, folder: Folder) -> None:
        if folder.closed:
            folder.closed = False
            self._note(b"d", path + b"/")

    def _note(self, kind: bytes, path: bytes) -> None:
        if len(path) > PATH_BYTES and kind != b"d":
            kind = b"n"
        self._records.append(kind + path)
        self._recorded += len(path)
        # One directory may hold a million names: no frame is larger than the other end takes.
        if self._recorded >= BUFFER_BYTES or len(self._records) >= _RECORDS:
            self._report()

    def _report(self) -> None:
        if self._records:
            self._channel.send(b"E", b"\0".join(self._records))
            self._records, self._recorded = [], 0

    def look(self, path: bytes) -> tuple[int, int, int, int]:
        """(mode, inode, ctime in ns, size) without following a link."""
        try:
            found = self.os.lstat(path)
        except PermissionError:
            return unpack_stat(self._channel.ask(b"s", path)[0])
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # deeper than one system call reaches
                return (stat.S_IFREG, 0, 0, 0)
            check_gone(error)
            raise GoneError from None
        return found.st_mode, found.st_ino, found.st_ctime_ns, found.st_size

    def save(self) -> bytes:
        """Everything that is known, for a program that takes this one's place."""
        return marshal.dumps({path: (f.key, f.folders, f.files, f.mine, f.closed) for path, f in self._folders.items()})

    def load(self, saved: bytes) -> None:
        """Know what another program knew when it saved it."""
        # Made by a program like this one, which nobody else can write to, and kept by the daemon.
        known = marshal.loads(saved)  # noqa: S302
        for path, (key, folders, files, mine, closed) in known.items():
            folder = self._folders[path] = Folder(mine)
            folder.key, folder.folders, folder.files, folder.closed = key, folders, files, closed

    def distrust(self, path: bytes) -> None:
        """What the scan saw was gone when it was to be read: look at it anew next time."""
        folder = self._folders.get(os.path.dirname(path))
        if folder is not None and path in folder.files:
            folder.files[path] = NEVER


def unpack_stat(answer: bytes) -> tuple[int, int, int, int]:
    mode, inode, changed_ns, size = STAT.unpack(answer)
    return mode, inode, changed_ns, size


def split_names(pairs: list[tuple[bytes, bool]]) -> tuple[list[bytes], list[bytes]]:
    folders = [name for name, is_folder in pairs if is_folder and name != b".git"]
    files = [name for name, is_folder in pairs if not is_folder and name != b".git"]
    return folders, files
