"""One meaning per head: what h11 decides, what is refused on top of it, and the limits."""

from __future__ import annotations

import pytest

from daemon.errors import (
    BadRequestError,
    HeadTooLargeError,
    RequestError,
    TargetTooLongError,
    TooLargeError,
    VersionError,
)
from daemon.http_head import MAX_BODY_BYTES, MAX_FIELDS, MAX_REQUEST_LINE_BYTES, Head, Heads, parse_head


def head(*lines: str, first: str = "GET /version HTTP/1.1", host: str = "Host: x") -> Head:
    """Parse a head of these fields; an empty ``host`` leaves it out."""
    text = "\r\n".join([line for line in (first, host, *lines) if line]) + "\r\n\r\n"
    return parse_head(text.encode("latin-1"))


def refused(*lines: str, first: str = "POST /x HTTP/1.1", host: str = "Host: x") -> RequestError:
    with pytest.raises(RequestError) as caught:
        head(*lines, first=first, host=host)
    return caught.value


def test_a_head_is_its_parts() -> None:
    found = head("Content-Type: application/json", "CONTENT-LENGTH: 5", first="POST /tool/bash?action=x HTTP/1.1")
    assert (found.method, found.target, found.version) == ("POST", "/tool/bash?action=x", "1.1")
    assert found.fields == {"host": "x", "content-type": "application/json", "content-length": "5"}
    assert (found.length, found.keep_alive, found.expects_continue) == (5, True, False)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A:b", "b"),
        ("A: \t b \t ", "b"),
        ("A:", ""),
        ("A: b c\td", "b c\td"),
        ("A: \xe9\xff", "\xe9\xff"),
        ('A: "b:c", d', '"b:c", d'),
    ],
)
def test_a_value_loses_the_blanks_around_it_and_nothing_else(line: str, value: str) -> None:
    assert head(line).fields["a"] == value


def test_a_field_that_may_repeat_is_joined_in_order() -> None:
    assert head("Accept: a", "X: y", "accept: b").fields["accept"] == "a, b"


@pytest.mark.parametrize("name", ["Host", "Content-Type", "Origin", "Expect", "Content-Length", "Transfer-Encoding"])
def test_a_field_that_must_be_alone_is_refused_when_it_repeats(name: str) -> None:
    value = {"Content-Length": "1", "Transfer-Encoding": "chunked"}.get(name, "a")
    assert isinstance(refused(f"{name}: {value}", f"{name.lower()}: {value}"), BadRequestError)
    assert isinstance(refused(f"{name}: {value}", "A: b", f"{name.upper()}: {value}"), BadRequestError)


def test_http_1_1_needs_a_host_and_http_1_0_does_not() -> None:
    assert "Host" in str(refused(host=""))
    assert head(first="GET / HTTP/1.0", host="").fields == {}


@pytest.mark.parametrize(
    "first",
    [
        "GET /version",
        "GET  /version HTTP/1.1",
        "GET /version  HTTP/1.1",
        "GET /ver sion HTTP/1.1",
        "GET\t/version\tHTTP/1.1",
        " GET /version HTTP/1.1",
        "GET /version HTTP/1.1 ",
        "GET /version http/1.1",
        "GET /version HTTP/11",
        "GET /version HTTP/1.1.1",
        "GET /\xe9 HTTP/1.1",
        "GET /\0 HTTP/1.1",
        "GET /\x7f HTTP/1.1",
        "G@T /version HTTP/1.1",
        "G\xc9T /version HTTP/1.1",
        "/version HTTP/1.1",
    ],
)
def test_a_malformed_request_line_is_refused(first: str) -> None:
    assert isinstance(refused(first=first), BadRequestError)


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "9.9"])
def test_another_version_is_refused_as_such(version: str) -> None:
    assert isinstance(refused(first=f"GET / HTTP/{version}"), VersionError)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        ": x",
        "A : b",
        " A: b",
        "\tA: b",
        "A: b\r\n c",
        "A: b\r\n\tc",
        "A: b\nB: c",
        "A: b\n\r\nB: c",
        "A: b\rc",
        "A: b\r",
        "A\xe9: b",
        "A b: c",
        "(A): b",
        *(f"A: b{chr(code)}c" for code in [*range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F]),
    ],
)
def test_a_malformed_field_is_refused(line: str) -> None:
    assert isinstance(refused(line), BadRequestError)


@pytest.mark.parametrize("value", ["", "-1", "+1", "0x1", "1 1", "1,1", "1, 1", "1;", "\xb2", "1_0", "1.0", "9" * 21])
def test_a_length_that_is_not_one_plain_number_is_refused(value: str) -> None:
    assert isinstance(refused(f"Content-Length: {value}"), BadRequestError)


@pytest.mark.parametrize(
    "value", ["gzip", "gzip, chunked", "chunked, chunked", "identity", "xchunked", "chunked;a=b", ""]
)
def test_a_coding_that_is_not_chunked_is_refused(value: str) -> None:
    assert isinstance(refused(f"Transfer-Encoding: {value}"), BadRequestError)


def test_a_length_beside_chunks_and_chunks_in_http_1_0_are_refused() -> None:
    assert isinstance(refused("Transfer-Encoding: chunked", "Content-Length: 3"), BadRequestError)
    assert isinstance(refused("Content-Length: 0", "Transfer-Encoding: chunked"), BadRequestError)
    assert isinstance(refused("Transfer-Encoding: chunked", first="POST / HTTP/1.0"), BadRequestError)


@pytest.mark.parametrize(
    ("line", "length"),
    [
        ("A: b", 0),
        ("Content-Length: 0", 0),
        ("Content-Length:\t007 ", 7),
        (f"Content-Length: {MAX_BODY_BYTES}", MAX_BODY_BYTES),
        ("Transfer-Encoding: chunked", None),
        ("Transfer-Encoding:\tChunKed ", None),
    ],
)
def test_the_length_of_the_body_is_known_from_the_head(line: str, length: int | None) -> None:
    assert head(line, first="POST / HTTP/1.1").length == length


def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    for length in (MAX_BODY_BYTES + 1, 10**20 - 1):
        assert isinstance(refused(f"Content-Length: {length}"), TooLargeError)


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        ("/a?b", "/a?b", "x"),
        ("http://y/a?b", "/a?b", "y"),
        ("HTTPS://y:1/a", "/a", "y:1"),
        ("http://y", "/", "y"),
        ("http://y?b", "/?b", "y"),
        ("http:///a", "/a", ""),
        ("//y/a", "//y/a", "x"),
        ("*", "*", "x"),
        ("unix://y/a", "unix://y/a", "x"),
    ],
)
def test_an_absolute_target_is_its_path_and_its_host_wins(target: str, path: str, host: str) -> None:
    found = head(first=f"GET {target} HTTP/1.1")
    assert (found.target, found.fields["host"]) == (path, host)


@pytest.mark.parametrize(
    ("line", "version", "keeps"),
    [
        ("A: b", "1.1", True),
        ("Connection: keep-alive", "1.1", True),
        ("Connection: close", "1.1", False),
        ("Connection: CLOSE", "1.1", False),
        ("Connection: upgrade,\tclose ", "1.1", False),
        ("Connection: closed", "1.1", True),
        ("A: b", "1.0", False),
        ("Connection: keep-alive", "1.0", False),
    ],
)
def test_a_connection_is_kept_unless_somebody_wants_it_closed(line: str, version: str, keeps: bool) -> None:
    assert head(line, first=f"GET / HTTP/{version}").keep_alive is keeps


def test_only_http_1_1_can_wait_for_100_continue() -> None:
    assert head("Expect: 100-Continue").expects_continue
    assert not head("Expect: 100-continue", first="POST / HTTP/1.0").expects_continue
    assert not head("Expect: tea").expects_continue


def test_lines_and_fields_have_limits() -> None:
    fill = "x" * (MAX_REQUEST_LINE_BYTES - len("GET / HTTP/1.1"))
    assert head(first=f"GET /{fill} HTTP/1.1").target == f"/{fill}"
    assert isinstance(refused(first=f"GET /{fill}x HTTP/1.1"), TargetTooLongError)
    assert head(*["A: b"] * (MAX_FIELDS - 1)).fields["a"].count("b") == MAX_FIELDS - 1
    assert isinstance(refused(*["A: b"] * MAX_FIELDS), HeadTooLargeError)


def test_a_refusal_does_not_quote_what_was_sent() -> None:
    assert "secret" not in str(refused("secret"))
    assert "secret" not in str(refused(first="secret"))


def test_the_heads_of_one_connection_are_each_what_they_are_alone() -> None:
    heads = Heads()
    sent = ["A: 1", "A: 1", "A: 2", "Content-Length: 3", "Content-Length: 3", "A: 1", "A: " + 5000 * "x", "A: 1"]
    for line in sent:
        data = f"POST / HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n".encode()
        found, alone = heads.parse(data), parse_head(data)
        assert (found.fields, found.length, found.keep_alive) == (alone.fields, alone.length, alone.keep_alive)


def test_each_chunked_body_has_a_parser_of_its_own() -> None:
    heads = Heads()
    data = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert heads.parse(data).parser is not heads.parse(data).parser


def test_a_refused_head_is_refused_again() -> None:
    heads = Heads()
    heads.parse(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    for _ in range(2):
        with pytest.raises(BadRequestError):
            heads.parse(b"GET / HTTP/1.1\r\n\r\n")
