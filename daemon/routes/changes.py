"""What the agent changed so far."""

from __future__ import annotations

from dataclasses import asdict

from flask import Blueprint, Response

from daemon.access import Rule
from daemon.answers import list_answer, text_answer
from daemon.routes.declare import route, services

blueprint = Blueprint("changes", __name__)


@route(blueprint, "GET", "/diff", Rule.ANY)
def diff() -> Response:
    """The agent's changes, as a unified diff."""
    return text_answer({"diff": services().capture.diff()})


@route(blueprint, "GET", "/files", Rule.ANY)
def files() -> Response:
    """The files the agent changed."""
    return list_answer("files", map(asdict, services().capture.files()))
