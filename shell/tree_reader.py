"""The program that looks at the agent's tree; a process of its own, started by shell.reader.

Runs as: the agent's user under a group that no process of the agent has, so that the agent cannot trace it. It may be
  stopped or killed by the agent: the daemon's side has a time limit.
Distrusts: everything below the tree: names, types, contents, and that any of it stays as it is.
Promises: only ever reads; never follows a link inside the tree; opens regular files only, without waiting for a
  writer; never looks into a component named ``.git`` unless asked for a file of the repository itself.
Does not promise: one moment's picture of a tree that changes meanwhile; the next scan reports what changed.
Checked by: tests/system/test_capture_reader.py.

It talks over the socket on its standard input, in frames: one letter, the payload's length, the payload.
It uses the standard library only and is handed over as text: another user need not be able to read our files.

Requests: ``I`` first: part, parts, path of the tree · ``S`` scan · ``R`` read these files · ``Q`` one small file of the
repository. Answers to S: ``E`` records of what changed since the last scan, then ``Z``. Answers to R, one per file in
order: ``=`` as expected, ``c`` small content, ``C`` size then ``D``... then ``F`` large content (``A``: forget it,
it shrank), ``G`` gone, ``B`` too big, ``U`` unreadable, ``L`` held by
a lease. ``.`` means: still at work. ``O`` asks for help with what
the agent made unreadable for himself; the answer is ``o``, with a descriptor where one was asked for.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import os
import resource
import socket
import stat
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any, NoReturn

FRAME = struct.Struct(">cI")
STAT = struct.Struct(">IQqq")
DIGEST_BYTES = 32
BUFFER_BYTES = 1 << 18
SMALL_BYTES = 1 << 20
LARGEST_BYTES = 1 << 30
PATH_BYTES = 4095
# A change less than this before the scan may share its timestamp with a later one: such an entry is reported again.
RACY_NS = 30_000_000
NEVER = (0, 0)
HEARTBEAT_S = 0.5
SHRINK_ATTEMPTS = 5
LEASE_S = 10.0


class GoneError(Exception):
    """There is no regular file or link at the path (any more)."""


class UnreadableError(Exception):
    """The file is closed to the agent and not his own."""


class HeldError(Exception):
    """A lease on the file keeps it from being opened."""


class Channel:
    """Frames over the socket, buffered on the way out."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._flushed = time.monotonic()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._buffer.append(FRAME.pack(kind, len(payload)))
        self._buffer.append(payload)
        self._buffered += len(payload) + FRAME.size
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            self._socket.sendall(b"".join(self._buffer))
        self._buffer, self._buffered = [], 0
        self._flushed = time.monotonic()

    def heartbeat(self) -> None:
        if time.monotonic() - self._flushed > HEARTBEAT_S:
            self.send(b".")
            self.flush()

    def receive(self) -> tuple[bytes, bytes, int | None]:
        """The next frame and a descriptor that came with it, or None."""
        head, ancillary, _flags, _address = self._socket.recvmsg(FRAME.size, socket.CMSG_SPACE(4))
        fd = None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                fd = fds[0]
        while 0 < len(head) < FRAME.size:
            head += self._socket.recv(FRAME.size - len(head))
        if not head:
            sys.exit(0)
        kind, length = FRAME.unpack(head)
        payload = bytearray()
        while len(payload) < length:
            data = self._socket.recv(min(1 << 20, length - len(payload)))
            if not data:
                sys.exit(0)
            payload += data
        return kind, bytes(payload), fd

    def ask(self, operation: bytes, path: bytes) -> tuple[bytes, int | None]:
        """Have root look at what the agent closed to himself; (answer, descriptor)."""
        self.send(b"O", operation + path)
        self.flush()
        _kind, payload, fd = self.receive()
        if payload[:1] == b"g":
            raise GoneError
        if payload[:1] != b"y":
            raise UnreadableError
        return payload[1:], fd

    def ask_for_descriptor(self, operation: bytes, path: bytes) -> int:
        """Like ``ask``, for what is answered by a descriptor."""
        fd = self.ask(operation, path)[1]
        if fd is None:
            raise GoneError
        return fd


class Closed:
    """Stands in for ``os`` when the tree itself is closed to the agent: everything has to be asked for."""

    @staticmethod
    def refuse(*_arguments: object) -> NoReturn:
        raise PermissionError

    lstat = scandir = readlink = open = refuse


class Folder:
    """What is known of one directory: its key, its subdirectories, and the keys of its files."""

    __slots__ = ("files", "folders", "key", "mine")

    def __init__(self, mine: bool) -> None:
        self.key = NEVER
        self.folders: tuple[bytes, ...] = ()
        self.files: dict[bytes, tuple[int, int]] = {}
        self.mine = mine


class Tree:
    """The tree as far as this part of it is concerned: a directory's files belong to exactly one part."""

    def __init__(self, channel: Channel, root: bytes, part: int, parts: int) -> None:
        self._channel = channel
        self._root = root
        self._part, self._parts = part, parts
        self._folders: dict[bytes, Folder] = {}
        self._records: list[bytes] = []
        # The system's calls, or none of them while the tree itself is closed.
        self._os: Any = os
        self._trusted_ns = 0

    # --- scan

    def scan(self) -> bool:
        """Report what changed since the last scan; False when the tree itself is gone."""
        if not self._enter():
            return False
        self._trusted_ns = time.time_ns() - RACY_NS
        pending = [b""]
        while pending:
            path = pending.pop()
            pending.extend(self._scan_folder(path))
            if len(self._records) > 2000:
                self._report()
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
        except OSError:
            return False
        try:
            os.fchdir(fd)
            self._os = os
        except OSError:
            # Relative paths would now mean something else: none may reach the system.
            self._os = Closed
        finally:
            os.close(fd)
        return True

    def _scan_folder(self, path: bytes) -> tuple[bytes, ...]:
        """Compare one directory with what is known of it; its subdirectories."""
        try:
            found = self._stat(path or b".")
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
        lstat = self._os.lstat
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
            mode, inode, changed_ns, _size = self._stat(path)
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
            self._note(b"u", path + b"/")
            folders, files = [], []
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
            listing = self._os.scandir(path or b".")
        except PermissionError:
            fd = self._channel.ask_for_descriptor(b"d", path)
            try:
                # A descriptor yields text; the names are bytes again at once.
                with os.scandir(fd) as entries:
                    pairs = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
            finally:
                os.close(fd)
            return split_names(pairs)
        except OSError:
            raise GoneError from None
        with listing as entries:
            return split_names([(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries])

    def _forget(self, path: bytes) -> None:
        """A directory is gone, with everything below it."""
        pending = [path]
        while pending:
            folder = self._folders.pop(pending.pop(), None)
            if folder is None:
                continue
            pending.extend(folder.folders)
            for file in folder.files:
                self._note(b"d", file)

    def _note(self, kind: bytes, path: bytes) -> None:
        if len(path) > PATH_BYTES and kind != b"d":
            kind = b"n"
        self._records.append(kind + path)

    def _report(self) -> None:
        if self._records:
            self._channel.send(b"E", b"\0".join(self._records))
            self._records = []

    # --- look at one entry

    def _stat(self, path: bytes) -> tuple[int, int, int, int]:
        """(mode, inode, ctime in ns, size) without following a link."""
        try:
            found = self._os.lstat(path)
        except PermissionError:
            return unpack_stat(self._channel.ask(b"s", path)[0])
        except OSError as error:
            if error.errno == 36:  # ENAMETOOLONG: deeper than one system call reaches
                return (stat.S_IFREG, 0, 0, 0)
            raise GoneError from None
        return found.st_mode, found.st_ino, found.st_ctime_ns, found.st_size

    def read(self, path: bytes, digest: bytes, size: int) -> None:
        """Answer one line of an ``R`` request."""
        try:
            mode = self._stat(path)[0]
            if stat.S_ISLNK(mode):
                self._send_small(b"l", self._read_link(path), digest)
            elif stat.S_ISREG(mode):
                self._read_file(path, digest, size)
            else:
                raise GoneError
        except GoneError:
            self._distrust(path)
            self._channel.send(b"G")
        except UnreadableError:
            self._channel.send(b"U")
        except HeldError:
            self._channel.send(b"L")
        self._channel.heartbeat()

    def _distrust(self, path: bytes) -> None:
        """What the scan saw was gone when it was to be read: look at it anew next time."""
        folder = self._folders.get(os.path.dirname(path))
        if folder is not None and path in folder.files:
            folder.files[path] = NEVER

    def _read_link(self, path: bytes) -> bytes:
        try:
            target: bytes = self._os.readlink(path)
        except PermissionError:
            target = self._channel.ask(b"l", path)[0]
        except OSError:
            raise GoneError from None
        return target

    def _read_file(self, path: bytes, digest: bytes, size: int) -> None:
        fd = self._open(path)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise GoneError
            kind = kind_of(found.st_mode)
            if found.st_size <= SMALL_BYTES:
                self._send_small(kind, self._read_at_most(fd, found.st_size), digest)
            elif found.st_size == size and self._hash(fd, size) == digest:
                self._channel.send(b"=", kind)
            elif found.st_size > LARGEST_BYTES:
                self._channel.send(b"B")
            else:
                self._send_large(fd, kind)
        finally:
            os.close(fd)

    def _open(self, path: bytes) -> int:
        # Without waiting: for a FIFO that took the file's place, or for a holder of a lease, who may hold it for long.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        until = time.monotonic() + LEASE_S
        while True:
            try:
                fd: int = self._os.open(path, flags)
                return fd
            except BlockingIOError:
                if time.monotonic() > until:
                    raise HeldError from None
                time.sleep(0.01)
                self._channel.heartbeat()
            except PermissionError:
                return self._channel.ask_for_descriptor(b"f", path)
            except OSError:
                raise GoneError from None

    def _read_at_most(self, fd: int, size: int) -> bytes:
        parts = []
        while size > 0 and (data := os.read(fd, size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def _hash(self, fd: int, size: int) -> bytes:
        digest = hashlib.sha256()
        while size > 0 and (data := os.read(fd, min(size, 1 << 20))):
            digest.update(data)
            size -= len(data)
            self._channel.heartbeat()
        return digest.digest()

    def _send_small(self, kind: bytes, data: bytes, digest: bytes) -> None:
        if hashlib.sha256(data).digest() == digest:
            self._channel.send(b"=", kind)
        else:
            self._channel.send(b"c", kind + data)

    def _send_large(self, fd: int, kind: bytes) -> None:
        """Send exactly as many bytes as are announced; a file that shrinks meanwhile is begun anew."""
        for _ in range(SHRINK_ATTEMPTS):
            os.lseek(fd, 0, os.SEEK_SET)
            left = os.fstat(fd).st_size
            if left > LARGEST_BYTES:
                break
            self._channel.send(b"C", kind + struct.pack(">Q", left))
            while left > 0 and (data := os.read(fd, min(left, BUFFER_BYTES))):
                self._channel.send(b"D", data)
                left -= len(data)
            if left == 0:
                self._channel.send(b"F")
                return
            self._channel.send(b"A")
        raise GoneError

    def repository_file(self, path: bytes, limit: int) -> bytes:
        """A small file of the repository, by the agent's rights, links followed; GoneError when there is none."""
        try:
            fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            raise GoneError from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise GoneError
            return self._read_at_most(fd, limit)
        finally:
            os.close(fd)


def unpack_stat(answer: bytes) -> tuple[int, int, int, int]:
    mode, inode, changed_ns, size = STAT.unpack(answer)
    return mode, inode, changed_ns, size


def split_names(pairs: list[tuple[bytes, bool]]) -> tuple[list[bytes], list[bytes]]:
    folders = [name for name, is_folder in pairs if is_folder and name != b".git"]
    files = [name for name, is_folder in pairs if not is_folder and name != b".git"]
    return folders, files


def kind_of(mode: int) -> bytes:
    """``f`` file, ``x`` executable file, ``l`` link, ``s`` anything that is never captured."""
    if stat.S_ISREG(mode):
        return b"x" if mode & stat.S_IXUSR else b"f"
    return b"l" if stat.S_ISLNK(mode) else b"s"


def requests_in(payload: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """The (path, digest, size) lines of an ``R`` request."""
    start = 0
    while start < len(payload):
        digest = payload[start : start + DIGEST_BYTES]
        (size,) = struct.unpack_from(">q", payload, start + DIGEST_BYTES)
        start += DIGEST_BYTES + 8
        end = payload.index(b"\0", start)
        yield payload[start:end], digest, size
        start = end + 1


def main() -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = Channel(socket.socket(fileno=0))
    _kind, payload, _fd = channel.receive()
    part, parts = struct.unpack_from(">HH", payload)
    tree = Tree(channel, payload[4:], part, parts)
    while True:
        kind, payload, _fd = channel.receive()
        if kind == b"S":
            channel.send(b"Z", b"y" if tree.scan() else b"n")
        elif kind == b"R":
            for path, digest, size in requests_in(payload):
                tree.read(path, digest, size)
            channel.send(b"Z")
        elif kind == b"Q":
            try:
                channel.send(b"q", tree.repository_file(payload, SMALL_BYTES))
            except GoneError:
                channel.send(b"G")
        channel.flush()


if __name__ == "__main__":
    main()
