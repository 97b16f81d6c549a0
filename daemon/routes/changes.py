"""What the agent changed so far."""

from __future__ import annotations

from flask import Blueprint, Response

from daemon import schemas
from daemon.access import Rule
from daemon.answers import encode, large_answer, list_answer
from daemon.routes.declare import route, services

blueprint = Blueprint("changes", __name__)
_CHANGED_FILE = schemas.ChangedFile()


@route(blueprint, "GET", "/diff", Rule.ANY)
def diff() -> Response:
    """The agent's changes, as a unified diff."""
    return large_answer({"diff": services().capture.diff()})


@route(blueprint, "GET", "/files", Rule.ANY)
def files() -> Response:
    """The files the agent changed."""
    return list_answer("files", (encode(_CHANGED_FILE.dump(file)) for file in services().capture.files()))
