"""YAML to plain data, for files that anyone may have written.

Runs as: whoever reads a task, the daemon as root among them.
Distrusts: every byte of the file.
Promises: the result holds only dicts with text keys, lists, text without NUL or lone surrogates, numbers, booleans
  and None; time and memory are bounded by the size and depth limits. A refusal is a YamlError with a line.
Does not promise: anchors, aliases, merge keys, tags, dates, or several documents; all are refused or plain text.
Checked by: tests/unit/tasks/test_yamlfile.py.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_NUMBER_CHARACTERS = 40

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# Kinds of YAML 1.1 that only surprise: what they would be stays text.
_NOT_RESOLVED = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
_MERGE = "tag:yaml.org,2002:merge"


class YamlError(ValueError):
    """The text is not acceptable YAML; the message says what and where."""


def load_yaml(data: bytes) -> Any:
    """The one document in ``data``; YamlError with a line number for everything that is not acceptable."""
    if len(data) > MAX_BYTES:
        raise YamlError(f"expected at most {MAX_BYTES} bytes, found {len(data)}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError(f"expected UTF-8, found another encoding at byte {error.start}") from None
    try:
        return _load(text)
    except yaml.MarkedYAMLError as error:
        raise YamlError(_with_line(error.problem or error.context or "not YAML", error.problem_mark)) from None
    except yaml.YAMLError as error:
        raise YamlError(f"expected YAML: {' '.join(str(error).split())}") from None
    except (ValueError, OverflowError, TypeError, AttributeError) as error:
        # PyYAML lets what int(), float() and chr() raise pass through.
        raise YamlError(f"expected YAML: {error}") from None


def _load(text: str) -> Any:
    loader = _PlainLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _with_line(message: str, mark: yaml.Mark | None) -> str:
    return message if mark is None else f"line {mark.line + 1}: {message}"


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without what a configuration does not need."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            # A few aliases of aliases stand for gigabytes; nothing in a task needs even one.
            raise _refusal("aliases are not accepted; write the value out", event.start_mark)
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _refusal(f"tags are not accepted: {tag}", event.start_mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refusal(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARACTERS:
            # `1:1:1:...` is one number to the base of 60, computed in the square of its length.
            raise _refusal(
                f"a number of more than {MAX_NUMBER_CHARACTERS} characters; put it in quotes", node.start_mark
            )
        value = super().construct_scalar(node)
        if isinstance(value, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
            raise _refusal("NUL and lone surrogates are not accepted", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag == _MERGE or not isinstance(key, str):
                raise _refusal("expected a name as the key", key_node.start_mark)
            if key in seen:
                raise _refusal(f"duplicate key: {key}", key_node.start_mark)
            seen.add(key)
            # `on:` and `1:` are names too; only their values are typed.
            key_node.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep=deep)


# A copy of the table: the class attribute is shared with every other user of PyYAML in the process.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_RESOLVED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _refusal(message: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=message, problem_mark=mark)
