"""Files below a directory of root's, by names as long as git allows: too long for one system call with a prefix."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from shell.tree_mirror import names_in, remove

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _open_folder(root: str, path: bytes, *, create: bool = False) -> int:
    """A descriptor of the directory at ``path`` below ``root``, reached without links; with ``create`` it is made."""
    at = os.open(root, _FOLDER)
    try:
        for name in filter(None, path.split(b"/")):
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=at)
            inner = os.open(name, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
    except BaseException:
        os.close(at)
        raise
    return at


@contextlib.contextmanager
def _folder(root: str, path: bytes, *, create: bool = False) -> Iterator[int]:
    """A descriptor as ``_open_folder`` gives it, closed after the body of the ``with``."""
    at = _open_folder(root, path, create=create)
    try:
        yield at
    finally:
        os.close(at)


def create_file(root: str, path: bytes, mode: int) -> int:
    """A descriptor for writing the new file at ``path`` below ``root``; directories on the way are made."""
    folder, name = os.path.split(path)
    with _folder(root, folder, create=True) as at:
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=at)


def remove_file(root: str, path: bytes) -> None:
    """Remove the file at ``path`` below ``root``, and the directories above it that are empty then."""
    folder, name = os.path.split(path)
    with _folder(root, folder) as at:
        os.unlink(name, dir_fd=at)
    while folder:
        folder, name = os.path.split(folder)
        with _folder(root, folder) as at:
            try:
                os.rmdir(name, dir_fd=at)
            except OSError:
                return


def remove_unpatchable(root: str, path: bytes) -> None:
    """Remove from the directory at ``path`` what a patch cannot: every ``.git`` in it, and then empty directories."""
    with _folder(root, path) as at:
        folders = [b"."]
        for folder in folders:
            for name in names_in(folder, at):
                inner = folder + b"/" + name
                if name == b".git":
                    remove(inner, at)
                elif stat.S_ISDIR(os.stat(inner, dir_fd=at, follow_symlinks=False).st_mode):
                    folders.append(inner)
        for folder in reversed(folders[1:]):
            with contextlib.suppress(OSError):
                os.rmdir(folder, dir_fd=at)


def create_link(root: str, path: bytes, target: bytes) -> None:
    """Make a symbolic link at ``path`` below ``root``; directories on the way are made."""
    folder, name = os.path.split(path)
    with _folder(root, folder, create=True) as at:
        os.symlink(target, name, dir_fd=at)


def look_at(root: str, path: bytes) -> os.stat_result | None:
    """What is at ``path`` below ``root``, links not followed; None when nothing is."""
    folder, name = os.path.split(path)
    try:
        with _folder(root, folder) as at:
            return os.stat(name, dir_fd=at, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link where a directory would have to be
            return None
        raise


def open_file(root: str, path: bytes) -> int:
    """A descriptor for reading the file at ``path`` below ``root``, reached without links."""
    folder, name = os.path.split(path)
    with _folder(root, folder) as at:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)


def read_link(root: str, path: bytes) -> bytes:
    """The target of the link at ``path`` below ``root``."""
    folder, name = os.path.split(path)
    with _folder(root, folder) as at:
        return os.readlink(name, dir_fd=at)
