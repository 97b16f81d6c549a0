"""Bytes of a connection, cut anywhere: heads and bodies come out whole, what follows stays, nothing takes for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import gevent
import pytest
from gevent import socket

from daemon import http_stream
from daemon.errors import (
    BadRequestError,
    HeadTooLargeError,
    RequestError,
    RequestTimeoutError,
    TargetTooLongError,
    TooLargeError,
)
from daemon.http_head import MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_REQUEST_LINE_BYTES, parse_head
from daemon.http_stream import Body, Stream

CHUNKED = "Transfer-Encoding: chunked"
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Pair:
    """A client's end and the stream at the other."""

    client: socket.socket
    stream: Stream

    def send(self, data: bytes) -> None:
        """Send from the client's side, in a greenlet: more than the socket holds may come."""
        gevent.spawn(self.client.sendall, data)

    def body(self, *fields: str) -> Body:
        """The body that follows, announced by these fields."""
        lines = ["POST / HTTP/1.1", "Host: x", *fields, "", ""]
        return Body(self.stream, parse_head("\r\n".join(lines).encode()))

    def next_head(self) -> bytes | None:
        assert self.stream.wait_for_request()
        return self.stream.read_head()


@pytest.fixture
def pair() -> Iterator[Pair]:
    client, server = socket.socketpair()
    with client, server:
        yield Pair(client, Stream(server))


def test_heads_come_one_by_one_with_their_empty_line(pair: Pair) -> None:
    pair.send(b"\r\n\r\n" + NEXT + b"\r\n" + NEXT * 2)
    assert [pair.next_head() for _ in range(3)] == [NEXT] * 3


def test_a_head_in_single_bytes_comes_whole(pair: Pair) -> None:
    def drip() -> None:
        for byte in NEXT:
            pair.client.sendall(bytes([byte]))
            gevent.sleep(0)

    gevent.spawn(drip)
    assert pair.next_head() == NEXT


def test_a_client_that_closes_ends_the_stream(pair: Pair) -> None:
    pair.client.sendall(b"\r\nGET")
    pair.client.shutdown(socket.SHUT_WR)
    assert pair.stream.wait_for_request()
    assert pair.stream.read_head() is None
    pair.stream.unread(b"")
    assert pair.stream.read_head() is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"x" * (MAX_REQUEST_LINE_BYTES + 1), TargetTooLongError),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD_BYTES, HeadTooLargeError),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", HeadTooLargeError),
    ],
)
def test_a_head_without_end_is_refused(pair: Pair, data: bytes, error: type[RequestError]) -> None:
    pair.send(data)
    with pytest.raises(error):
        pair.next_head()


def test_a_head_has_a_deadline_from_its_first_byte(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "HEAD_SECONDS", 0.05)
    pair.client.sendall(b"GET / HTTP/1.1\r\n")
    with pytest.raises(RequestTimeoutError):
        pair.next_head()


@pytest.mark.parametrize("fields", [["Content-Length: 5"], [CHUNKED]])
def test_a_body_has_a_deadline_from_its_first_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, fields: list[str]
) -> None:
    monkeypatch.setattr(http_stream, "BODY_SECONDS", 0.05)
    pair.client.sendall(b"4\r\nx")
    with pytest.raises(RequestTimeoutError):
        pair.body(*fields).read()


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        (["Content-Length: 5"], b"hello"),
        ([CHUNKED], b"5\r\nhello\r\n0\r\n\r\n"),
        ([CHUNKED], b"1;a=b\r\nh\r\n004 \r\nello\r\n000\r\nA: b\r\nC: d\r\n\r\n"),
        ([CHUNKED], b'2;x="\xe9"\r\nhe\r\n3\r\nllo\r\n0;end\r\n\r\n'),
    ],
)
def test_a_body_is_its_bytes_and_what_follows_stays(pair: Pair, fields: list[str], data: bytes) -> None:
    for size in (-1, 1, 3, 5, 100):
        pair.send(data + NEXT)
        body = pair.body(*fields)
        parts = [body.read(size)]
        while not body.ended:
            parts.append(body.read(size))
        assert b"".join(parts) == b"hello"
        assert size < 0 or all(len(part) <= size for part in parts)
        assert body.read() == b""
        assert pair.next_head() == NEXT


def test_a_chunked_body_in_single_bytes_comes_whole(pair: Pair) -> None:
    def drip() -> None:
        for byte in b"1;a=b\r\nh\r\n004\r\nello\r\n0\r\nA: b\r\n\r\n" + NEXT:
            pair.client.sendall(bytes([byte]))
            gevent.sleep(0)

    gevent.spawn(drip)
    assert pair.body(CHUNKED).read() == b"hello"
    assert pair.next_head() == NEXT


def test_random_chunks_cut_anywhere_come_out_whole(pair: Pair) -> None:
    chance = random.Random(7)
    for _ in range(50):
        parts = [chance.randbytes(chance.choice([1, 2, 100, 4096, 20_000])) for _ in range(chance.randrange(1, 8))]
        wire = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n" + NEXT

        def drip(wire: bytes = wire) -> None:
            while wire:
                size = chance.choice([1, 7, 4095, 4096, 4097, 60_000])
                pair.client.sendall(wire[:size])
                wire = wire[size:]
                gevent.sleep(0)

        sender = gevent.spawn(drip)
        assert pair.body(CHUNKED).read() == b"".join(parts)
        sender.join()
        assert pair.next_head() == NEXT


REFUSED_CHUNKS: dict[str, tuple[bytes, type[RequestError]]] = {
    "no number": (b"x\r\n", BadRequestError),
    "negative": (b"-1\r\n", BadRequestError),
    "sign": (b"+1\r\na\r\n", BadRequestError),
    "prefix": (b"0x1\r\na\r\n", BadRequestError),
    "blank before": (b" 1\r\na\r\n", BadRequestError),
    "empty": (b"\r\n", BadRequestError),
    "too many digits": (b"0" * 21 + b"\r\n\r\n", BadRequestError),
    "LF after a size": (b"1\na\r\n0\r\n\r\n", BadRequestError),
    "LF after a chunk": (b"1\r\na\n0\r\n\r\n", BadRequestError),
    "LF in an extension": (b"1;a\nb\r\na\r\n0\r\n\r\n", BadRequestError),
    "CR in an extension": (b"1;a\rb\r\na\r\n0\r\n\r\n", BadRequestError),
    "NUL in an extension": (b"1;\0\r\na\r\n0\r\n\r\n", BadRequestError),
    "CR alone after a chunk": (b"1\r\na\r0\r\n\r\n", BadRequestError),
    "LF for the empty line": (b"0\r\n\n", BadRequestError),
    "LF in the trailer": (b"0\r\nA: b\n\r\n", BadRequestError),
    "LF at the end of the trailer": (b"0\r\nA: b\r\n\n", BadRequestError),
    "control character in the trailer": (b"0\r\nA: \x01\r\n\r\n", BadRequestError),
    "nonsense in the trailer": (b"0\r\nnonsense\r\n\r\n", BadRequestError),
    "more data than the size says": (b"1\r\nab\r\n0\r\n\r\n", BadRequestError),
    "larger than the limit": (b"1000001\r\n", TooLargeError),
    "far larger than the limit": (b"f" * 20 + b"\r\n", TooLargeError),
    "larger than the limit in the second chunk": (b"1\r\na\r\n1000000\r\n", TooLargeError),
    "an extension without end": (b"1;" + b"x" * 10_000, BadRequestError),
    "a trailer field without end": (b"0\r\nA: " + b"x" * 10_000, BadRequestError),
    "a trailer of many fields": (b"0\r\n" + b"A: b\r\n" * 40, BadRequestError),
}


@pytest.mark.parametrize("drips", [False, True])
@pytest.mark.parametrize("name", REFUSED_CHUNKS)
def test_a_chunked_body_that_can_be_misread_is_refused(pair: Pair, name: str, drips: bool) -> None:
    data, error = REFUSED_CHUNKS[name]

    def drip() -> None:
        for byte in data:
            pair.client.sendall(bytes([byte]))
            gevent.sleep(0)

    sender = gevent.spawn(drip) if drips else gevent.spawn(pair.client.sendall, data)
    body = pair.body(CHUNKED)
    with pytest.raises(error):
        body.read()
    assert not body.skip(10_000, 1.0)
    sender.kill()


def test_the_largest_chunked_body_is_read_and_one_byte_more_is_not(pair: Pair) -> None:
    pair.send(b"%x\r\n%b\r\n0\r\n\r\n" % (MAX_BODY_BYTES, bytes(MAX_BODY_BYTES)) + NEXT)
    assert len(pair.body(CHUNKED).read()) == MAX_BODY_BYTES
    assert pair.next_head() == NEXT


def test_others_get_their_turn_while_a_client_floods_with_small_chunks(pair: Pair) -> None:
    turns = []

    def other() -> None:
        while True:
            turns.append(1)
            gevent.sleep(0)

    wire = b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
    pair.send(wire)
    gevent.sleep(0)
    greenlet = gevent.spawn(other)
    assert len(pair.body(CHUNKED).read()) == 10_000
    greenlet.kill()
    assert len(turns) >= len(wire) // 4096


@pytest.mark.parametrize(("fields", "data"), [(["Content-Length: 5"], b"hell"), ([CHUNKED], b"5\r\nhell")])
def test_a_body_that_the_client_does_not_finish_is_refused(pair: Pair, fields: list[str], data: bytes) -> None:
    pair.client.sendall(data)
    pair.client.shutdown(socket.SHUT_WR)
    with pytest.raises(BadRequestError):
        pair.body(*fields).read()


def test_what_nobody_read_is_skipped_within_limits(pair: Pair) -> None:
    pair.client.sendall(b"hello" + b"5\r\nhello\r\n0\r\n\r\n" + NEXT)
    assert pair.body("Content-Length: 5").skip(5, 1.0)
    assert pair.body(CHUNKED).skip(100, 1.0)
    assert pair.next_head() == NEXT
    assert not pair.body("Content-Length: 6").skip(5, 1.0)
    assert not pair.body("Content-Length: 5").skip(5, 0.05)
    assert not pair.body("Content-Length: 5", "Expect: 100-continue").skip(5, 1.0)


def test_100_continue_is_said_once_and_only_to_who_waits_for_it(pair: Pair) -> None:
    body = pair.body("Content-Length: 2", "Expect: 100-continue")
    pair.client.sendall(b"ab" + b"c")
    assert (body.read(1), body.read(1)) == (b"a", b"b")
    assert pair.body("Content-Length: 1").read() == b"c"
    assert pair.client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
