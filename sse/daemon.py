"""The HTTP client that everything else in the SDK goes through."""

from __future__ import annotations

import functools
import os
import ssl
import warnings
from typing import Any
from urllib.parse import quote

import httpx

from sse.error import SDKError
from sse.version import __version__

SOCKET_VARIABLE = "SSE_DAEMON_SOCKET"
ADDRESS_VARIABLE = "SSE_AGENT_DOCKER"
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 600.0  # GET /diff of a large tree waits for the capture
# The daemon speaks plain HTTP. Without a context of its own every client would read the CA bundle, which takes longer
# than the request and which an agent's user may not be able to open.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Daemon:
    """A client of one daemon.

    The address is ``socket`` (a path), else ``SSE_DAEMON_SOCKET``, else ``SSE_AGENT_DOCKER`` (host:port); it is read
    when the object is made, nothing is contacted. Before the first request the daemon is asked for its version, with a
    warning when it is not the SDK's. Each request has a connection of its own, so that an object may be used from
    several threads and after a fork. Every method raises SDKError when the daemon refuses, fails or is not there.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        path = os.fspath(socket) if socket is not None else os.environ.get(SOCKET_VARIABLE)
        address = os.environ.get(ADDRESS_VARIABLE)
        if path:
            self.address = path
            self._uds: str | None = path
            self._base = "http://daemon"
        elif address:
            self.address = address
            self._uds = None
            self._base = f"http://{address}"
        else:
            raise SDKError(f"no daemon known: set {SOCKET_VARIABLE} to its socket or {ADDRESS_VARIABLE} to host:port")
        self._version_checked = False

    def get(self, path: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """GET ``path``; the answer's JSON object."""
        self._check_version()
        return self._ask("GET", path, params=params, timeout_s=_READ_SECONDS)

    def post(
        self,
        path: str,
        json: object = None,
        params: dict[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """POST ``json`` (an empty object by default) to ``path``; the answer's JSON object.

        Without ``timeout_s`` it waits for as long as the daemon works: a script may run for an hour.
        """
        self._check_version()
        return self._ask("POST", path, params=params, json={} if json is None else json, timeout_s=timeout_s)

    def tool(self, name: str, action: str, argument: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run ``action`` of the tool ``name`` and wait for its result."""
        return self.post(f"/tool/{quote(name, safe='')}", json=argument, params={"action": action})

    def version(self) -> str:
        """The daemon's version."""
        answer = self._ask("GET", "/version", timeout_s=_READ_SECONDS)
        version = answer.get("version")
        if not isinstance(version, str):
            raise SDKError(f"expected a version in the answer of {self.address}, found {sorted(answer)}")
        return version

    def project(self) -> dict[str, Any]:
        """The task's metadata; ``sse.metadata.parse_metadata`` gives it types."""
        return self.get("/project")

    def capabilities(self) -> dict[str, Any]:
        """Which checks the task has."""
        return self.get("/capabilities")

    def prepare_grading(self) -> dict[str, Any]:
        """Save the agent's diff and apply it to the graded copy; the admin socket only."""
        return self.post("/prepare_grading")

    def _check_version(self) -> None:
        if self._version_checked:
            return
        found = self.version()
        self._version_checked = True
        if found != __version__:
            message = f"the daemon is SSEBench {found}, this SDK {__version__}: answers may differ from what it expects"
            warnings.warn(message, stacklevel=4)

    def _ask(self, method: str, path: str, *, timeout_s: float | None, **request: Any) -> dict[str, Any]:
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_SECONDS)
        try:
            # trust_env: a proxy of the agent's must never see the daemon's traffic.
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=self._uds, verify=_NO_TLS),
                base_url=self._base,
                timeout=timeout,
                trust_env=False,
            ) as client:
                answer = client.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # ValueError: not JSON
            reason = str(error) or type(error).__name__
            raise SDKError(f"no answer from the daemon at {self.address} to {method} {path}: {reason}") from error
        return _body(answer, f"{method} {path}")


def current() -> Daemon:
    """The daemon that the environment names; the same object, and one version check, while it names the same."""
    return _known(os.environ.get(SOCKET_VARIABLE), os.environ.get(ADDRESS_VARIABLE))


@functools.cache
def _known(_socket: str | None, _address: str | None) -> Daemon:
    return Daemon()


def _body(answer: httpx.Response, request: str) -> dict[str, Any]:
    try:
        body = answer.json()
    except (ValueError, RecursionError):  # a dialog may be nested deeper than Python parses
        body = None
    if not isinstance(body, dict):
        raise SDKError(f"{request} answered {answer.status_code} without a JSON object", answer.status_code)
    if answer.status_code != httpx.codes.OK:
        message = body.get("error")
        fallback = f"{request} answered {answer.status_code}"
        raise SDKError(message if isinstance(message, str) else fallback, answer.status_code)
    return body
