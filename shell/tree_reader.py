"""The program that looks at the agent's tree; a process of its own, started by shell.reader.

Runs as: the agent's user under a group that no process of the agent has, so that the agent cannot trace it. It may be
  stopped or killed by the agent: the daemon's side has a time limit.
Distrusts: everything below the tree: names, types, contents, and that any of it stays as it is.
Promises: only ever reads. See shell.tree_scanner and shell.tree_files, of which the program is made.
Does not promise: one moment's picture of a tree that changes meanwhile; the next scan reports what changed.
Checked by: tests/system/test_capture.py, tests/system/test_capture_cases.py.

It talks over the socket on its standard input, in the frames of shell.tree_channel. Requests:

    I  first: part, parts, path of the tree
    S  scan; answered by E, records of what changed since the last scan (a kind and a path each), and Z at the end
    R  read these files; for each in turn one of
           =  as expected, and its kind
           c  kind and content
           C  kind and size, then D with content until F; or A: forget it, the file shrank
           G  gone    B  too big    U  unreadable    L  held by a lease
       and Z at the end
    X  what the scans know; answered by D, and Z at the end
    M  know this instead of nothing; not answered
    Q  a small file of the repository; answered by q and its content, or G

``.`` means: still at work. ``O`` asks for help with what the agent closed to himself: s its properties, l a link's
target, f a file, d a directory; the answer is ``o``, with a descriptor for f and d.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
from collections.abc import Iterator

from shell.tree_channel import BUFFER_BYTES, EXPECTED, SMALL_BYTES, Channel, GoneError
from shell.tree_files import FileReader
from shell.tree_scanner import TreeScanner


def main() -> None:
    """Answer requests until the daemon closes the socket."""
    with contextlib.suppress(ValueError, OSError):
        # Contents of the agent's tree must not end up in a core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = Channel(socket.socket(fileno=0))
    _kind, payload, _fd = channel.receive()
    part, parts = struct.unpack_from(">HH", payload)
    root = payload[4:]
    scanner = TreeScanner(channel, root, part, parts)
    files = FileReader(channel, scanner, root)
    while True:
        kind, payload, _fd = channel.receive()
        if kind == b"S":
            channel.send(b"Z", b"y" if scanner.scan() else b"n")
        elif kind == b"R":
            for path, digest, size in requests_in(payload):
                files.read(path, digest, size)
            channel.send(b"Z")
        elif kind == b"X":
            saved = scanner.save()
            for start in range(0, len(saved), BUFFER_BYTES):
                channel.send(b"D", saved[start : start + BUFFER_BYTES])
            channel.send(b"Z")
        elif kind == b"M":
            scanner.load(payload)
        elif kind == b"Q":
            try:
                channel.send(b"q", files.repository_file(payload, SMALL_BYTES))
            except GoneError:
                channel.send(b"G")
        channel.flush()


def requests_in(payload: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """The (path, digest, size) lines of an ``R`` request."""
    start = 0
    while start < len(payload):
        digest, size = EXPECTED.unpack_from(payload, start)
        start += EXPECTED.size
        end = payload.index(b"\0", start)
        yield payload[start:end], digest, size
        start = end + 1


if __name__ == "__main__":
    main()
