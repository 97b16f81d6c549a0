"""The kinds of values a task's files hold: each refuses what is not exactly its kind and names what it expects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from marshmallow import ValidationError, fields

_SHOWN_CHARACTERS = 60


class Text(fields.Field[str]):
    """A string and nothing that only looks like one; optionally of one ``pattern``, told to people as ``expected``."""

    def __init__(self, *, pattern: str | None = None, expected: str = "text", **options: Any) -> None:
        super().__init__(**_with_messages(options))
        self.pattern = pattern
        self.expected = expected

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise self.make_error("kind", message=f"expected {self.expected}, found {shown(value)}{_quote_hint(value)}")
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
            raise self.make_error("kind", message="expected text without NUL and lone surrogates")
        # \Z, where $ would let one newline at the end pass.
        if self.pattern is not None and re.match(f"(?:{self.pattern})\\Z", value) is None:
            raise self.make_error("kind", message=f"expected {self.expected}, found {shown(value)}")
        return value


class Choice(Text):
    """One of a few words."""

    def __init__(self, choices: Sequence[str], **options: Any) -> None:
        super().__init__(expected=f"one of {', '.join(choices)}", **options)
        self.choices = tuple(choices)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value not in self.choices:
            raise self.make_error("kind", message=f"expected {self.expected}, found {shown(value)}")
        return str(value)


class Whole(fields.Field[int]):
    """A whole number of at least ``least``; true and false are no numbers."""

    def __init__(self, *, least: int = 0, **options: Any) -> None:
        super().__init__(**_with_messages(options))
        self.least = least

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if type(value) is not int or value < self.least:
            message = f"expected a whole number of at least {self.least}, found {shown(value)}"
            raise self.make_error("kind", message=message)
        return value


class Listing(fields.List[Any]):
    """A list of one kind of value; marshmallow's own also takes tuples and sets, which never come out of a file."""

    def __init__(self, inner: fields.Field[Any], **options: Any) -> None:
        super().__init__(inner, **_with_messages(options))

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self.make_error("kind", message=f"expected a list, found {shown(value)}")
        return super()._deserialize(value, attr, data, **kwargs)


class Section(fields.Nested):
    """A mapping with its own schema."""

    def __init__(self, nested: Any, **options: Any) -> None:
        super().__init__(nested, **_with_messages(options))

    def _deserialize(self, value: Any, attr: str | None, data: Any, partial: Any = None, **kwargs: Any) -> Any:
        if not isinstance(value, dict):
            raise self.make_error("kind", message=f"expected a mapping, found {shown(value)}")
        return super()._deserialize(value, attr, data, partial=partial, **kwargs)


class Table(fields.Field[dict[str, str]]):
    """A mapping from one kind of text to another."""

    def __init__(self, keys: Text, values: Text, **options: Any) -> None:
        super().__init__(**_with_messages(options))
        self.keys = keys
        self.values = values

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise self.make_error("kind", message=f"expected a mapping, found {shown(value)}")
        errors = {}
        for key, inner in value.items():
            try:
                self.keys.deserialize(key)
                self.values.deserialize(inner)
            except ValidationError as error:
                errors[shown(key)] = error.messages
        if errors:
            raise ValidationError(errors)
        return value


def shown(value: Any) -> str:
    """A value as an error message shows it: short, on one line, safe for a terminal."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and value.bit_length() > _SHOWN_CHARACTERS * 4:
        return "a huge number"  # Python refuses to spell some
    text = ascii(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _quote_hint(value: Any) -> str:
    return "; put it in quotes" if isinstance(value, (int, float)) else ""


def _with_messages(options: dict[str, Any]) -> dict[str, Any]:
    messages = {
        "kind": "{message}",
        "required": "expected a value, the key is missing",
        "null": "expected a value, found nothing",
    }
    return {**options, "error_messages": messages}
