"""JSON as the standard has it, and nothing more: no duplicate keys, no NaN, no byte order mark, no endless nesting."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from grading.large_json import LargeParser, StrictJSONError

__all__ = ["StrictJSONError", "has_lone_surrogate", "parse_json", "spell_json"]

# Up to here the C parser is done within a few milliseconds, whatever the text holds.
_SMALL_BYTES = 128 * 1024


def parse_json(data: bytes) -> Any:
    """The value that ``data`` spells; StrictJSONError when it is not exactly one JSON value in UTF-8."""
    if len(data) > _SMALL_BYTES:
        return LargeParser(data).parse()
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise StrictJSONError("it is not UTF-8") from None
    except RecursionError:
        raise StrictJSONError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise StrictJSONError(f"{error.msg} at character {error.pos}") from None
    except ValueError:
        # Python refuses integers of more than some thousand digits before they cost anything.
        raise StrictJSONError("a number has too many digits") from None


def spell_json(value: object) -> bytes:
    """``value`` as JSON in UTF-8, without spaces. Lone surrogates, which no UTF-8 has, become U+FFFD."""
    text = _ENCODER.encode(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode("utf-8")


def has_lone_surrogate(value: Any) -> bool:
    """Whether a string somewhere in ``value`` cannot be UTF-8."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            if not found.isascii() and _SURROGATE.search(found):
                return True
        elif isinstance(found, dict):
            waiting += found.keys()
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise StrictJSONError("a key appears twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise StrictJSONError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJSONError("a number is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
_SURROGATE = re.compile("[\ud800-\udfff]")
