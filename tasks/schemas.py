"""The marshmallow schema of config.yaml: which keys there are and what each holds.

Unknown keys are errors. Rules that need more than one key or file are in config.py and folder.py.
"""

from __future__ import annotations

from typing import Any

from marshmallow import RAISE, Schema, ValidationError, fields, validates_schema

from tasks.fields import Choice, Listing, Section, Table, Text, Whole

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
ID_EXPECTED = "letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 128 characters"
LANGUAGE_PATTERN = r"[a-z][a-z0-9+#-]{0,31}"
# One line of visible text: a control character would let a name write headings of its own into the prompt.
LINE_PATTERN = r"(?=.*\S)[^\x00-\x1f\x7f-\x9f\u2028\u2029]+"
URL_PATTERN = r"https?://[^\s\x00-\x1f\x7f\"<>\\^`{|}]+"
REPOSITORY_PATTERN = r"https://[^\s\x00-\x1f\x7f\"<>\\^`{|}]+"
_PART = r"(?!\.\.?(?:/|\Z))[^/\x00-\x1f\x7f]+"
SOURCE_PATTERN = rf"(?:/{_PART})+"
FILE_PATTERN = rf"{_PART}(?:/{_PART})*"
FILE_EXPECTED = "a path inside the task folder, without '..' and not absolute"


class StrictSchema(Schema):
    """A mapping whose unknown keys are errors."""

    class Meta:
        unknown = RAISE

    error_messages = {  # noqa: RUF012 - marshmallow's own declaration
        "unknown": "unknown key",
        "type": "expected a mapping",
    }


def file_path(**options: Any) -> Text:
    """A path relative to the task's directory."""
    return Text(pattern=FILE_PATTERN, expected=FILE_EXPECTED, **options)


def optional(field: fields.Field[Any]) -> fields.Field[Any]:
    """The same field where the key may be left out or be null."""
    field.required = False
    field.allow_none = True
    field.load_default = None
    return field


class DescriptionSchema(StrictSchema):
    """``task_description``: what the agent is told."""

    issue = optional(Text())
    crash_report = optional(Listing(file_path()))
    bug_description = optional(Text())

    @validates_schema
    def _at_least_one(self, data: dict[str, Any], **_: Any) -> None:
        if not any(is_told(value) for value in data.values()):
            raise ValidationError("expected at least one of issue, crash_report and bug_description")


class ScriptsSchema(StrictSchema):
    """``scripts``: what the checks run."""

    build = optional(file_path())
    run = optional(file_path())
    test = optional(file_path())


class FilesSchema(StrictSchema):
    """``files``: what only the grader uses."""

    patch = optional(file_path())
    poc = optional(Listing(file_path()))
    future_test = optional(file_path())
    security_test = optional(file_path())
    intent_test = optional(file_path())


class ConfigSchema(StrictSchema):
    """The whole of config.yaml."""

    id = Text(required=True, pattern=ID_PATTERN, expected=ID_EXPECTED)
    project = Text(required=True, pattern=LINE_PATTERN, expected="a name on one line")
    repository = Text(required=True, pattern=REPOSITORY_PATTERN, expected="a link that begins with https://")
    language = Text(required=True, pattern=LANGUAGE_PATTERN, expected="a lowercase word such as c, go or rust")
    source = Text(required=True, pattern=SOURCE_PATTERN, expected="an absolute path without '.' and '..' parts")
    task_description = Section(DescriptionSchema, required=True)
    scripts = Section(ScriptsSchema, required=True)
    files = Section(FilesSchema, required=True)
    sanitizer = optional(Text())
    type = optional(Text())
    binary = optional(Text())
    trigger_commit = optional(Text())
    patch_commit = optional(Text())
    reference = optional(Listing(Text(pattern=URL_PATTERN, expected="a link")))
    originality = optional(Choice(["public", "crafted"]))


def is_told(value: object) -> bool:
    """Whether a description field says anything: the empty text and the placeholder ``none`` do not."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "none")
    return bool(value)


DIGEST_PATTERN = r"sha256:[0-9a-f]{64}"
HASH_PATTERN = r"[0-9a-f]{64}"
VERSION_PATTERN = r"(?!latest\Z)[a-z0-9][a-z0-9._-]{0,127}"
VERSION_EXPECTED = "a version such as demo-v1 in lowercase letters, digits, '.', '_' and '-', and not latest"
CHECKS = ["build", "poc", "function_test", "intent_test"]
ARCHITECTURES = ["amd64", "arm64"]


class DatasetSchema(StrictSchema):
    """dataset.yaml."""

    version = Text(required=True, pattern=VERSION_PATTERN, expected=VERSION_EXPECTED)
    description = optional(Text())
    arch = optional(Listing(Choice(ARCHITECTURES)))


class TaskEntrySchema(StrictSchema):
    """One task in a manifest."""

    id = Text(required=True, pattern=ID_PATTERN, expected=ID_EXPECTED)
    project = Text(required=True, pattern=LINE_PATTERN, expected="a name on one line")
    language = Text(required=True, pattern=LANGUAGE_PATTERN, expected="a lowercase word such as c, go or rust")
    base = Text(required=True, pattern=LINE_PATTERN, expected="an image")
    image = Text(required=True, pattern=LINE_PATTERN, expected="an image")
    arch = Listing(Choice(ARCHITECTURES), required=True)
    checks = Listing(Choice(CHECKS), required=True)
    config = Section(ConfigSchema, required=True)
    files = Table(
        Text(pattern=FILE_PATTERN, expected=FILE_EXPECTED),
        Text(pattern=HASH_PATTERN, expected="a SHA-256 in hexadecimal"),
        required=True,
    )


class ManifestSchema(StrictSchema):
    """manifest.json."""

    schema_version = Whole(required=True, least=1)
    dataset = Text(required=True, pattern=ID_PATTERN, expected=ID_EXPECTED)
    version = Text(required=True, pattern=VERSION_PATTERN, expected=VERSION_EXPECTED)
    generated_from = optional(Text(pattern=r"[0-9a-f]{7,64}", expected="a commit"))
    tasks = Listing(Section(TaskEntrySchema), required=True)

    @validates_schema
    def _unique(self, data: dict[str, Any], **_: Any) -> None:
        names = [task["id"].lower() for task in data["tasks"]]  # as image names have them
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValidationError(f"expected every id once, found more than one {', '.join(twice)}", "tasks")


class ImagesLockSchema(StrictSchema):
    """images.lock.json: the published case image of each task."""

    schema_version = Whole(required=True, least=1)
    version = Text(required=True, pattern=VERSION_PATTERN, expected=VERSION_EXPECTED)
    images = Table(
        Text(pattern=ID_PATTERN, expected=ID_EXPECTED),
        Text(pattern=DIGEST_PATTERN, expected="sha256: and 64 hexadecimal digits"),
        required=True,
    )
