"""A catalog: where a list of tasks comes from. A manifest file, a directory with one, or a URL.

Distrusts: what a URL answers; its size and the time it takes are bounded, its content is validated like a file's.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from shell.errors import SSEBenchError
from tasks.folder import MANIFEST_FILE
from tasks.manifest import MAX_MANIFEST_BYTES, parse_manifest
from tasks.paths import PathError, read_regular

CONNECT_SECONDS = 10.0
TOTAL_SECONDS = 60.0
_MAX_REDIRECTS = 5
# Compressed, a few kilobytes could stand for gigabytes.
_HEADERS = {"Accept-Encoding": "identity"}


class CatalogError(SSEBenchError):
    """A catalog cannot be read; the message says which and why."""


def load_catalog(where: str) -> dict[str, Any]:
    """The manifest at ``where``: a file, a directory, a URL that ends in .json, or a URL below which manifest.json is.

    CatalogError when it cannot be read, InvalidTaskError when it is no valid manifest.
    """
    if "://" in where:
        url = manifest_url(where)
        return parse_manifest(_download(url), url)
    path = os.path.join(where, MANIFEST_FILE) if os.path.isdir(where) else where
    try:
        folder, name = os.path.split(os.path.abspath(path))
        return parse_manifest(read_regular(folder, name, limit_bytes=MAX_MANIFEST_BYTES), path)
    except PathError as problem:
        raise CatalogError(f"catalog {path} {problem}") from None


def manifest_url(url: str) -> str:
    """The address of the manifest that ``url`` means."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise CatalogError(f"catalog {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise CatalogError(f"catalog {url}: expected a file, a directory, or a link with http:// or https://")
    if parts.path.endswith(".json"):
        return url
    return parts._replace(path=f"{parts.path.rstrip('/')}/{MANIFEST_FILE}").geturl()


def _download(url: str) -> bytes:
    """The bytes at ``url``, within a time limit for the whole, where httpx knows one for each read only."""
    answers: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(_fetch(url, time.monotonic() + TOTAL_SECONDS))
        except BaseException as error:
            answers.put(error)

    # Left behind when it is late: the program ends without waiting for it.
    threading.Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=TOTAL_SECONDS)
    except queue.Empty:
        raise _late(url) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _fetch(url: str, deadline: float) -> bytes:
    data = bytearray()
    try:
        with (
            httpx.Client(
                timeout=CONNECT_SECONDS, follow_redirects=True, max_redirects=_MAX_REDIRECTS, headers=_HEADERS
            ) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise CatalogError(f"catalog {url}: expected status 200, found {answer.status_code}")
            for chunk in answer.iter_raw():
                data += chunk
                if len(data) > MAX_MANIFEST_BYTES:
                    raise CatalogError(f"catalog {url}: larger than {MAX_MANIFEST_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise _late(url)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise CatalogError(f"catalog {url}: {str(error) or type(error).__name__}") from error
    return bytes(data)


def _late(url: str) -> CatalogError:
    return CatalogError(f"catalog {url}: not complete after {TOTAL_SECONDS:.0f} s")
