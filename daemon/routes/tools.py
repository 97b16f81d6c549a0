"""POST /tool/{name}. The order of the checks is part of the contract."""

from __future__ import annotations

from flask import Blueprint, Response, request

from daemon import schemas
from daemon.access import Kind, Rule
from daemon.answers import large_answer
from daemon.bodies import read_json
from daemon.connection import stopped_when_gone
from daemon.errors import BadRequestError
from daemon.routes.declare import client, listener_kind, route, services
from daemon.tools import check_gate

blueprint = Blueprint("tools", __name__)


@route(blueprint, "POST", "/tool/<name>", Rule.TOOL)
def run_tool(name: str) -> Response:
    """Run an action of a tool."""
    found, kind = services(), listener_kind()
    wanted = request.args.get("action")
    if wanted is None:
        raise BadRequestError("the action parameter is missing")
    action = found.tools.find(name, wanted)
    check_gate(found.access, action, kind)
    body = read_json(request)
    found.access.check_grading(body, kind)
    argument = schemas.load(action.schema, body)
    with stopped_when_gone(client()) as stop, found.actions.turn(stop, from_agent=kind is not Kind.ADMIN):
        found.access.check_phase(kind)
        result = action.run(argument, stop)
    answer = large_answer({"code": result.code, "stdout": result.stdout, "stderr": result.stderr})
    # The grader's answers are never the ones to be refused for what others do not read.
    if kind is not Kind.ADMIN:
        size = len(result.stdout) + len(result.stderr)
        found.unread.take(size)
        answer.call_on_close(lambda: found.unread.give_back(size))
    return answer
