"""Bodies in: strict JSON, or a 400 that says why."""

from __future__ import annotations

from flask import Request

from daemon.errors import BadRequestError
from grading.strict_json import StrictJSONError, parse_json


def read_json(request: Request) -> object:
    """The JSON value in the body of ``request``."""
    if request.mimetype != "application/json":
        raise BadRequestError("the body must be sent with Content-Type: application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequestError("encoded bodies are not accepted; send the JSON as it is")
    try:
        return parse_json(request.get_data(cache=False))
    except StrictJSONError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None


def ignore_body(request: Request) -> None:
    """Take in a body that means nothing."""
    request.get_data(cache=False)
