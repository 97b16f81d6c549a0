"""Bodies in: strict JSON, or a 400 that says why."""

from __future__ import annotations

from flask import Request

from daemon.errors import BadRequestError, TooLargeError
from daemon.http_head import MAX_BODY_BYTES
from grading.strict_json import StrictJSONError, parse_json


def read_body(request: Request) -> bytes:
    """The whole body of ``request``, straight from the connection: its reader already knows where the body ends."""
    body: bytes = request.environ["wsgi.input"].read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise TooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    return body


def read_json(request: Request) -> object:
    """The JSON value in the body of ``request``."""
    if request.mimetype != "application/json":
        raise BadRequestError("the body must be sent with Content-Type: application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequestError("encoded bodies are not accepted; send the JSON as it is")
    try:
        return parse_json(read_body(request))
    except StrictJSONError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
