"""A program of its own: hash a tree, or make one tree equal to another. Started by grading.baseline.

Runs as: root, on trees that root alone can change (the clean clone, the pristine copy).
Distrusts: nothing in them; it still follows no link and skips named pipes, sockets and devices, with a note.
Promises: after ``mirror`` both trees hold the same entries with the same bytes, modes, owners and times; what already
  was the same is compared and not written again. ``hash`` lists every file and link outside of ``.git`` components.
Does not promise: anything when the trees are changed meanwhile.
Checked by: tests/system/test_submission.py.

Arguments: ``hash TREE LIST`` or ``mirror FROM TO``. A record of LIST is: the kind (f, x or l), the SHA-256 of the
content, its size in eight bytes, the path, a NUL. Uses the standard library only.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import sys
from collections.abc import Iterator
from typing import BinaryIO

PIECE_BYTES = 1 << 20


def main() -> None:
    action, source, target = sys.argv[1], os.fsencode(sys.argv[2]), os.fsencode(sys.argv[3])
    # Every path below is relative to this directory: the longest names still fit one system call.
    os.chdir(source)
    if action == "hash":
        hash_tree(target)
    else:
        mirror_tree(target)


def hash_tree(target: bytes) -> None:
    with open(target, "wb", buffering=1 << 20) as listing:
        pending = [b""]
        while pending:
            for path, found in entries(pending.pop()):
                if path == b".git" or path.endswith(b"/.git"):
                    continue
                if stat.S_ISDIR(found.st_mode):
                    pending.append(path)
                elif stat.S_ISLNK(found.st_mode):
                    link = os.readlink(path)
                    write_record(listing, b"l", hashlib.sha256(link).digest(), len(link), path)
                elif stat.S_ISREG(found.st_mode):
                    kind = b"x" if found.st_mode & stat.S_IXUSR else b"f"
                    digest, size = digest_of(path)
                    write_record(listing, kind, digest, size, path)
                else:
                    note(path)
        listing.flush()
        os.fsync(listing.fileno())


def write_record(listing: BinaryIO, kind: bytes, digest: bytes, size: int, path: bytes) -> None:
    listing.write(kind + digest + struct.pack(">q", size) + path + b"\0")


def digest_of(path: bytes) -> tuple[bytes, int]:
    digest, size = hashlib.sha256(), 0
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while data := os.read(fd, PIECE_BYTES):
            digest.update(data)
            size += len(data)
    finally:
        os.close(fd)
    return digest.digest(), size


def entries(path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """(path, lstat) of what is in a directory, in the order of the names."""
    with os.scandir(path or b".") as listing:
        names = sorted(entry.name for entry in listing)
    prefix = path + b"/" if path else b""
    for name in names:
        yield prefix + name, os.lstat(prefix + name)


def mirror_tree(target: bytes) -> None:
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    folders = [(b".", os.lstat(b"."))]
    pending = [b""]
    while pending:
        path = pending.pop()
        names = set()
        for inner, found in entries(path):
            if not mirror_entry(inner, found, root):
                note(inner)
                continue
            names.add(os.path.basename(inner))
            if stat.S_ISDIR(found.st_mode):
                pending.append(inner)
                folders.append((inner, found))
        remove_others(path, names, root)
    # Last, and the innermost first: whatever is written into a directory changes its times.
    for path, found in reversed(folders):
        settle(path, found, root)


def mirror_entry(path: bytes, found: os.stat_result, root: int) -> bool:
    """Make the entry at ``path`` below ``root`` like this one; False for what is never copied."""
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return False
    there = lstat_or_none(path, root)
    if there is not None and stat.S_IFMT(there.st_mode) != stat.S_IFMT(found.st_mode):
        remove(path, root)
        there = None
    if stat.S_ISDIR(found.st_mode):
        if there is None:
            os.mkdir(path, 0o700, dir_fd=root)
        return True
    if there is not None and same(path, found, there, root):
        return True
    if there is not None:
        # Never written in place: the old file may have other names.
        os.unlink(path, dir_fd=root)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(path), path, dir_fd=root)
    else:
        copy_file(path, root)
    settle(path, found, root)
    return True


def lstat_or_none(path: bytes, root: int) -> os.stat_result | None:
    try:
        return os.stat(path, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return None


def same(path: bytes, found: os.stat_result, there: os.stat_result, root: int) -> bool:
    """Whether bytes, mode, owner and times are the same already."""
    wanted = (found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns)
    if (there.st_mode, there.st_uid, there.st_gid, there.st_size, there.st_mtime_ns) != wanted:
        return False
    if stat.S_ISLNK(found.st_mode):
        return os.readlink(path) == os.readlink(path, dir_fd=root)
    first = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    second = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        while True:
            data = os.read(first, PIECE_BYTES)
            if data != os.read(second, PIECE_BYTES):
                return False
            if not data:
                return True
    finally:
        os.close(first)
        os.close(second)


def copy_file(path: bytes, root: int) -> None:
    source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(path, flags, 0o600, dir_fd=root)
    try:
        while data := os.read(source, PIECE_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    finally:
        os.close(source)
        os.close(target)


def settle(path: bytes, found: os.stat_result, root: int) -> None:
    """Give the entry its owner, mode and times, in this order: a change of owner clears mode bits."""
    there = os.stat(path, dir_fd=root, follow_symlinks=False)
    if (there.st_uid, there.st_gid) != (found.st_uid, found.st_gid):
        os.chown(path, found.st_uid, found.st_gid, dir_fd=root, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(path, stat.S_IMODE(found.st_mode), dir_fd=root)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=root, follow_symlinks=False)


def remove_others(path: bytes, names: set[bytes], root: int) -> None:
    """Remove from the directory at ``path`` below ``root`` whatever is not in ``names``."""
    for name in names_in(path, root):
        if name not in names:
            remove(path + b"/" + name if path else name, root)


def remove(path: bytes, root: int) -> None:
    """Remove whatever is at ``path``; directories from the inside out."""
    pending = [path]
    while pending:
        path = pending[-1]
        if not stat.S_ISDIR(os.stat(path, dir_fd=root, follow_symlinks=False).st_mode):
            os.unlink(path, dir_fd=root)
        elif names := names_in(path, root):
            pending.extend(path + b"/" + name for name in names)
            continue
        else:
            os.rmdir(path, dir_fd=root)
        pending.pop()


def names_in(path: bytes, root: int) -> list[bytes]:
    folder = os.open(path or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        return [os.fsencode(name) for name in os.listdir(folder)]
    finally:
        os.close(folder)


def note(path: bytes) -> None:
    print(f"left out: {os.fsdecode(path)!a} is no file, directory or link", file=sys.stderr)


if __name__ == "__main__":
    main()
