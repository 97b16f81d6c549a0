"""The log never blocks and never lets a client write a line of its own."""

from __future__ import annotations

import logging
import os

from daemon.log import LineLog, LogHandler, printable


def test_control_characters_are_escaped() -> None:
    text = "a\nb\rc\0d\x1b[31m\x7f\x85\u2028\\"
    assert printable(text) == "a\\x0ab\\x0dc\\x00d\\x1b[31m\\x7f\\x85\\x2028\\\\"
    assert printable("x" * 600) == "x" * 512 + "..."


def test_a_reader_that_is_too_slow_loses_lines_and_is_told_how_many() -> None:
    read, write = os.pipe()
    try:
        log = LineLog(write)
        for number in range(1000):
            log.line(f"line {number} " + "x" * 100)
        first = os.read(read, 1 << 20).decode()
        log.line("after")
        second = os.read(read, 1 << 20).decode()
    finally:
        os.close(read)
        os.close(write)
    kept = first.count("\n")
    assert 10 < kept < 1000
    assert second.splitlines()[0] == f"log: {1000 - kept} lines were dropped because nobody read them in time"
    assert second.splitlines()[1].endswith(" after")


def test_a_reader_that_is_gone_stops_nobody() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        LineLog(write).line("nobody reads this")
    finally:
        os.close(write)


def test_records_with_traces_come_whole() -> None:
    read, write = os.pipe()
    try:
        handler = LogHandler(LineLog(write))
        try:
            raise ValueError("the reason")
        except ValueError as error:
            record = logging.LogRecord("x", logging.ERROR, "", 0, "failed %s", ("id",), (ValueError, error, None))
        handler.emit(record)
        text = os.read(read, 1 << 20).decode()
    finally:
        os.close(read)
        os.close(write)
    assert "ERROR failed id" in text
    assert "ValueError: the reason" in text
