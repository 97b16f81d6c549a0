"""The end of the agent phase, and the grade."""

from __future__ import annotations

from flask import Blueprint, Response, request

from daemon import schemas
from daemon.access import Rule
from daemon.answers import answer, large_answer
from daemon.bodies import read_body
from daemon.connection import stopped_when_gone
from daemon.routes.declare import client, route, services
from grading.result import read_result

blueprint = Blueprint("grading", __name__)
_SUCCESS = schemas.Success().dump({})
_RESULT = schemas.EvaluationResult()


@route(blueprint, "GET", "/result", Rule.ANY)
def result() -> Response:
    """The grade, once there is one."""
    return large_answer(_RESULT.dump(read_result(services().settings.results)))


@route(blueprint, "GET", "/final_diff", Rule.ANY)
def final_diff() -> Response:
    """The diff that prepare_grading saved."""
    return large_answer({"diff": services().submission.final_diff()})


@route(blueprint, "POST", "/prepare_grading", Rule.ADMIN)
def prepare_grading() -> Response:
    """Save the agent's diff and apply it to the copy that is graded."""
    read_body(request)
    found = services()
    found.end_agent_phase()
    with stopped_when_gone(client()) as stop, found.actions.turn(stop, from_agent=False):
        found.bencher.new_session()
        found.submission.prepare()
    return answer(_SUCCESS)


@route(blueprint, "POST", "/admin/agent_exited", Rule.ADMIN)
def agent_exited() -> Response:
    """End the agent phase."""
    read_body(request)
    services().end_agent_phase()
    return answer(_SUCCESS)
