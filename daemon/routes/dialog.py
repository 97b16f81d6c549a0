"""The agent's dialog."""

from __future__ import annotations

import re

from flask import Blueprint, Response, request

from daemon.access import Rule
from daemon.answers import list_answer
from daemon.errors import BadRequestError
from daemon.routes.declare import route, services

blueprint = Blueprint("dialog", __name__)
_INTEGER = re.compile(r"-?[0-9]{1,1000}", re.ASCII)


@route(blueprint, "GET", "/agent/dialog", Rule.ANY)
def dialog() -> Response:
    """The entries the agent wrote, those after ``since`` when it is given."""
    text = request.args.get("since")
    if text is not None and not _INTEGER.fullmatch(text):
        raise BadRequestError("since is not an integer")
    entries = services().dialog.entries(None if text is None else int(text))
    return list_answer("entries", entries)
