"""Directories opened step by step, so that no link on the way is followed."""

from __future__ import annotations

import os

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the directory at the absolute ``path``; OSError when any component is a link or no directory.

    With ``flags`` os.O_PATH the directory itself need not be readable.
    """
    if not os.path.isabs(path):
        raise ValueError(f"not an absolute path: {path}")
    parts = [part for part in path.split("/") if part]
    fd = os.open("/", _STEP)
    for number, part in enumerate(parts, 1):
        step = _STEP if number < len(parts) else flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            below = os.open(part, step, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def enter_directory(path: str) -> None:
    """Make the directory at the absolute ``path`` the working directory, following no link; OSError as above."""
    fd = open_directory(path, os.O_PATH)
    try:
        os.fchdir(fd)
    finally:
        os.close(fd)
