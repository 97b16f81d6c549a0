"""``ssebench-daemon``: read the settings, load the task, build the services, listen, stop cleanly.

Exit codes: 0 after SIGTERM or SIGINT, 2 when it cannot start (one line per problem on standard error).
Each bound listener is announced on standard error as ``listening KIND ADDRESS`` once all of them answer.
Checked by: tests/system/test_start.py.
"""

from __future__ import annotations

import sys

try:
    from daemon.patching import patch
except ModuleNotFoundError as error:
    # A plain install brings the SDK alone.
    print(f"ssebench-daemon: {error.name} is missing: install ssebench-daemon with its extra [daemon]", file=sys.stderr)
    sys.exit(2)

patch()

import argparse
import logging
import os
import resource
import signal
import traceback
from collections.abc import Sequence

import gevent
from gevent.event import Event

from daemon.listeners import Listener, Server, bind_admin_socket, bind_agent_socket, bind_http
from daemon.log import LineLog, LogHandler
from daemon.services import Services, build_services, check
from daemon.settings import Settings, read_settings
from shell.accounts import is_isolated
from shell.errors import SSEBenchError

_STOP_ACTIONS_SECONDS = 6.0
_STOP_REQUESTS_SECONDS = 1.0
_LAST_RESORT_SECONDS = 9.5
_RESERVED_DESCRIPTORS = 256  # for children, files and the shell; the rest is for connections


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until it is told to stop."""
    arguments = _arguments(argv)
    log = LineLog()
    logging.basicConfig(level=logging.INFO, handlers=[LogHandler(log)], force=True)
    stop = _stop_on_signals()
    try:
        settings = read_settings(os.environ)
        checked = check(settings)
        # Before anything of the run is touched: a path or port in use means that another daemon may be serving it.
        listeners = _bind_all(settings)
        try:
            services = build_services(settings, checked, fresh=arguments.fresh)
        except BaseException:
            _remove(listeners)
            raise
    except SSEBenchError as error:
        for line in str(error).splitlines():
            print(f"ssebench-daemon: {line}", file=sys.stderr)
        return 2
    if not is_isolated():
        log.raw("ssebench-daemon: warning: not started as root: nothing is isolated, fit for development only\n")
    servers = _serve(listeners, services, log)
    stop.wait()
    _shut_down(servers, services)
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ssebench-daemon", description="Serve, run and grade one task.")
    parser.add_argument("--fresh", action="store_true", help="forget the state of an earlier start of the same run")
    return parser.parse_args(argv)


def _stop_on_signals() -> Event:
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, stop.set)
    return stop


def _bind_all(settings: Settings) -> list[Listener]:
    """Bind every listener or none."""
    bound: list[Listener] = []
    try:
        if settings.daemon_socket is not None:
            bound.append(bind_agent_socket(settings.daemon_socket))
        bound.append(bind_http(settings.http_host, settings.http_port))
        if settings.admin_socket is not None:
            bound.append(bind_admin_socket(settings.admin_socket))
    except BaseException:
        _remove(bound)
        raise
    return bound


def _remove(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.remove()


def _serve(listeners: Sequence[Listener], services: Services, log: LineLog) -> list[Server]:
    from daemon.app import create_app

    def log_exception(number: str) -> None:
        log.raw(f"internal error {number}\n{traceback.format_exc()}")

    app = create_app(services).wsgi_app
    share = max(16, (_raise_descriptor_limit() - _RESERVED_DESCRIPTORS) // max(1, len(listeners)))
    servers = [
        Server(listener, app, access_log=log.line, log_exception=log_exception, max_connections=share)
        for listener in listeners
    ]
    for server in servers:
        server.start()
    for listener in listeners:
        log.raw(f"listening {listener.kind.value} {listener.address}\n")
    return servers


def _raise_descriptor_limit() -> int:
    """Take as many descriptors as the hard limit allows, within reason; how many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else wanted


def _shut_down(servers: Sequence[Server], services: Services) -> None:
    """Within ten seconds: no new connections, actions stopped, their answers sent, children gone."""
    # Whatever hangs, this does not: a supervisor would send SIGKILL next, and children outlive that no better.
    gevent.spawn_later(_LAST_RESORT_SECONDS, os._exit, 0)
    for server in servers:
        server.close_gracefully()
    services.actions.close()
    services.actions.wait_idle(_STOP_ACTIONS_SECONDS)
    for server in servers:
        server.wait_finished(_STOP_REQUESTS_SECONDS / len(servers))
    services.close()


if __name__ == "__main__":
    sys.exit(main())
