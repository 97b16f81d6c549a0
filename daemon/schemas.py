"""Every body in and out, as marshmallow schemas. tests/unit/daemon/test_openapi.py compares them with openapi.yaml.

Distrusts: arguments of actions. They are taken as they are or refused with every bad field named; nothing is converted.
"""

from __future__ import annotations

import itertools
from typing import Any, NoReturn

from marshmallow import RAISE, Schema, ValidationError, fields, validate

from shell.errors import InvalidArgumentError

_LONGEST_SECONDS = 10**9
# More fields than any argument has, and more characters than any name: so many are not looked at one by one.
_MOST_FIELDS = 100
_NAMED_CHARACTERS = 100


class StrictBoolean(fields.Boolean):
    """true or false; not "yes", not 1."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if not isinstance(value, bool):
            raise ValidationError("must be true or false")
        return value


class PositiveNumber(fields.Float):
    """A JSON number above 0; beyond what a timer can count it makes no difference any more."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValidationError("must be a number")
        if not value > 0:
            raise ValidationError("must be above 0")
        return float(min(value, _LONGEST_SECONDS))


class Text(fields.String):
    """A string that a program can be given: no NUL, no lone surrogate."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("must be a string")
        if "\0" in value:
            raise ValidationError("must not contain NUL")
        try:
            value.encode("utf-8")  # the fastest way to look at megabytes of characters
        except UnicodeEncodeError:
            raise ValidationError("must not contain a lone surrogate") from None
        return value


class StrictSchema(Schema):
    """Refuses fields it does not know."""

    error_messages = {"unknown": "unknown field", "type": "must be an object"}  # noqa: RUF012

    class Meta:
        """See marshmallow."""

        unknown = RAISE


class GradingArgument(StrictSchema):
    """The argument of build, function_test and intent_test."""

    grading = StrictBoolean(load_default=False)


class PocArgument(StrictSchema):
    """The argument of run_poc; grading is tolerated and changes nothing."""

    poc = Text(required=True, error_messages={"required": "is missing"})
    grading = StrictBoolean(load_default=False)


class BashArgument(StrictSchema):
    """The argument of bash. timeout: seconds, capped by SSE_BASH_TIMEOUT."""

    command = Text(required=True, error_messages={"required": "is missing"})
    timeout = PositiveNumber()


def load(schema: Schema, argument: object) -> dict[str, Any]:
    """``argument`` as ``schema`` has it; InvalidArgumentError names every bad field, or the first ones of very many."""
    if isinstance(argument, dict) and len(argument) > _MOST_FIELDS:
        unknown = itertools.islice((name for name in argument if name not in schema.fields), _MOST_FIELDS // 10)
        problems = [f"{_shortened(name)}: unknown field" for name in unknown]
        raise InvalidArgumentError("; ".join([*problems, f"{len(argument)} fields are too many"]))
    try:
        return schema.load(argument)  # type: ignore[arg-type,no-any-return]
    except ValidationError as error:
        _refuse(error)


def _refuse(error: ValidationError) -> NoReturn:
    messages = error.messages
    if isinstance(messages, list):
        raise InvalidArgumentError(", ".join(map(str, messages))) from None
    problems = []
    for name, found in messages.items():
        text = ", ".join(map(str, found)) if isinstance(found, list) else str(found)
        problems.append(text if name == "_schema" else f"{_shortened(str(name))}: {text}")
    raise InvalidArgumentError("; ".join(problems)) from None


def _shortened(name: str) -> str:
    return name if len(name) <= _NAMED_CHARACTERS else f"{name[:_NAMED_CHARACTERS]}..."


class Version(Schema):
    """GET /version."""

    version = fields.String(required=True)


class TaskDescription(Schema):
    """What the agent is told about the bug."""

    issue = fields.String(required=True, allow_none=True)
    crash_report = fields.List(fields.String(), required=True, allow_none=True)
    bug_description = fields.String(required=True, allow_none=True)


class Metadata(Schema):
    """GET /project."""

    id = fields.String(required=True)
    project = fields.String(required=True)
    language = fields.String(required=True)
    source = fields.String(required=True)
    task_description = fields.Nested(TaskDescription, required=True)
    poc = fields.List(fields.String(), required=True)
    build_script = fields.String(required=True, allow_none=True)
    test_script = fields.String(required=True, allow_none=True)


class Capabilities(Schema):
    """GET /capabilities."""

    can_build = fields.Boolean(required=True)
    can_run_poc = fields.Boolean(required=True)
    poc_count = fields.Integer(required=True)
    has_function_test = fields.Boolean(required=True)
    has_intent_test = fields.Boolean(required=True)


class ScriptResult(Schema):
    """POST /tool/{name}."""

    code = fields.Integer(required=True)
    stdout = fields.String(required=True)
    stderr = fields.String(required=True)


class Diff(Schema):
    """GET /diff, /final_diff, /reference/patch."""

    diff = fields.String(required=True)


class ChangedFile(Schema):
    """One entry of GET /files."""

    path = fields.String(required=True)
    status = fields.String(required=True, validate=validate.OneOf(["modified", "added", "deleted"]))
    additions = fields.Integer(required=True)
    deletions = fields.Integer(required=True)


class Files(Schema):
    """GET /files."""

    files = fields.List(fields.Nested(ChangedFile), required=True)


class Dialog(Schema):
    """GET /agent/dialog."""

    entries = fields.List(fields.Dict(), required=True)


class PatchResult(Schema):
    """The grade. All fields may be absent: results of older evaluators have fewer."""

    status = fields.String(validate=validate.OneOf(["passed", "failed", "error"]))
    build_success = fields.Boolean(allow_none=True)
    pov_passed = fields.Integer(allow_none=True)
    pov_total = fields.Integer(allow_none=True)
    func_test_success = fields.Boolean(allow_none=True)
    intent_test_success = fields.Boolean(allow_none=True)
    error_msg = fields.String(allow_none=True)
    error_log = fields.String(allow_none=True)


class RuntimeResult(Schema):
    """How the run went."""

    agent_duration = fields.Integer(required=True)
    agent_timeout = fields.Boolean(required=True)
    evaluator_timeout = fields.Boolean(required=True)


class EvaluationResult(Schema):
    """GET /result."""

    available = fields.Boolean(required=True)
    patch_result = fields.Nested(PatchResult)
    runtime_result = fields.Nested(RuntimeResult)


class Success(Schema):
    """POST /prepare_grading and /admin/agent_exited."""

    success = fields.Constant(True, required=True)


class Error(Schema):
    """Every status above 399."""

    error = fields.String(required=True)
