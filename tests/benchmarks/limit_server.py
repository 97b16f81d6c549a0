"""The limit row: a bare bash on pipes behind a bare gevent WSGI app, with the JSON of POST /tool/bash.

No user, no terminal, no second stream, no time limit, nothing that can go wrong: nothing that does more can be faster.
Run as: python -m tests.benchmarks.limit_server SOCKET
"""

from daemon.patching import patch

patch()

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

from gevent import socket
from gevent.pywsgi import WSGIServer

_MARK = b"\x1e end "


class BareBash:
    """One bash that reads commands from a pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["/bin/bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def run(self, command: str) -> tuple[int, bytes]:
        """The code and stdout of a command."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command.encode() + b'\nprintf "\\036 end %d\\n" $?\n')
        pieces = []
        while True:
            pieces.append(self._process.stdout.read(1 << 20) or b"")
            if pieces[-1].endswith(b"\n") and _MARK in (tail := b"".join(pieces[-2:]))[-20:]:
                output, _, code = tail.rpartition(_MARK)
                return int(code), b"".join((*pieces[:-2], output))

    def app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application."""
        request = json.loads(environ["wsgi.input"].read())
        code, stdout = self.run(request["command"])
        body = json.dumps({"code": code, "stdout": stdout.decode("utf-8", "replace"), "stderr": ""}).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def main() -> None:
    """Serve until killed."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    listener.listen(16)
    WSGIServer(listener, BareBash().app, log=None, error_log=None).serve_forever()


if __name__ == "__main__":
    main()
