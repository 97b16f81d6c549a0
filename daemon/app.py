"""The Flask app: routes from the blueprints, access before any work, JSON for every error."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Any

from flask import Flask, Response, current_app, request
from flask.globals import request_ctx
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import Map

from daemon.access import check_origin
from daemon.answers import answer
from daemon.errors import RequestError
from daemon.routes import changes, dialog, grading, task, tools
from daemon.routes.declare import listener_kind, rule_of
from daemon.services import Services
from shell.errors import InvalidArgumentError, SSEBenchError

_LOG = logging.getLogger("ssebench.daemon")
_MESSAGES = {404: "no such endpoint", 405: "the endpoint does not serve this method"}


class App(Flask):
    """Flask, but OPTIONS is answered without a body: a body would have to be JSON."""

    def make_default_options_response(self) -> Response:
        """Which methods the path serves."""
        response = Response(status=204)
        del response.headers["Content-Type"]
        adapter = request_ctx.url_adapter
        assert adapter is not None
        response.headers["Allow"] = _allow(adapter.allowed_methods())
        return response


def create_app(services: Services) -> Flask:
    """The app on ``services``. Where a request came in is in its environ; without that it counts as the agent's."""
    app = App("daemon", static_folder=None, template_folder=None)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.extensions["ssebench"] = services
    # One path per endpoint: no redirect from //admin to /admin, none from /version/ to /version.
    app.url_map = Map(strict_slashes=True, merge_slashes=False, host_matching=False)
    for blueprint in (task.blueprint, tools.blueprint, changes.blueprint, dialog.blueprint, grading.blueprint):
        app.register_blueprint(blueprint)
    app.before_request(_check_access)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(SSEBenchError, _our_error)
    app.register_error_handler(Exception, _unexpected_error)
    return app


def _check_access() -> None:
    # werkzeug itself takes //version for /version.
    if request.environ["PATH_INFO"][:1] != "/" or "//" in request.environ["PATH_INFO"]:
        raise NotFound
    if request.url_rule is None:
        return  # 404 or 405, raised when the request is dispatched
    services: Services = current_app.extensions["ssebench"]
    kind = listener_kind()
    view = current_app.view_functions[request.url_rule.endpoint]
    services.access.check_route(rule_of(view), kind)
    if request.method == "POST":
        check_origin(request.headers.get("Origin"), request.headers.get("Host"), kind)


def _allow(methods: Iterable[str]) -> str:
    return ", ".join(sorted(methods))


def _http_error(error: HTTPException) -> Response:
    code = error.code or 500
    response = answer({"error": _MESSAGES.get(code, str(error.name).lower())}, code)
    methods = getattr(error, "valid_methods", None)
    if methods:
        response.headers["Allow"] = _allow(methods)
    return response


def _our_error(error: SSEBenchError) -> Response:
    """The one place where an error of ours gets its status: its own, or 500."""
    status = error.status if isinstance(error, RequestError) else 500
    message = f"invalid argument: {error}" if isinstance(error, InvalidArgumentError) else str(error)
    return answer({"error": message}, status)


def _unexpected_error(error: Exception) -> Any:
    number = uuid.uuid4().hex[:12]
    _LOG.error("internal error %s", number, exc_info=error)
    return answer({"error": f"internal error {number}"}, 500)
