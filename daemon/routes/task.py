"""What the task is: version, metadata, capabilities, and for the grader the reference patch."""

from __future__ import annotations

import gevent
from flask import Blueprint, Response

from daemon import schemas
from daemon.access import Rule
from daemon.answers import encode, encoded, large_answer
from daemon.routes.declare import route, services
from sse.version import __version__
from tasks.metadata import reference_patch

blueprint = Blueprint("task", __name__)
_VERSION = encode(schemas.Version().dump({"version": __version__}))


@route(blueprint, "GET", "/version", Rule.ANY)
def version() -> Response:
    """The daemon's version."""
    return encoded(_VERSION)


@route(blueprint, "GET", "/project", Rule.ANY)
def project() -> Response:
    """The task's metadata."""
    return encoded(services().metadata)


@route(blueprint, "GET", "/capabilities", Rule.ANY)
def capabilities() -> Response:
    """Which checks the task supports."""
    return encoded(services().capabilities)


@route(blueprint, "GET", "/reference/patch", Rule.ADMIN)
def reference() -> Response:
    """The answer to the task."""
    found = services()
    # In a thread: the file may be large, and its disk slow.
    patch = gevent.get_hub().threadpool.apply(reference_patch, (found.task, found.settings.bench_path))
    return large_answer({"diff": patch})
