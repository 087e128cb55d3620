"""Who logs never waits for the stream that takes the lines."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time

import pytest
from prometheus_client import CollectorRegistry

from slacktide.observe import setup_logging
from slacktide.observe.queued import QueuedHandler
from slacktide.settings import ObserveSettings
from tests.patience import PATIENCE


@pytest.fixture
def pipe():
    read, write = os.pipe()
    stream = os.fdopen(write, "w", encoding="utf-8")
    yield read, stream
    os.close(read)
    stream.close()


def record(text):
    return logging.LogRecord("test", logging.INFO, __file__, 1, text, None, None)


def wait_for(condition, what):
    end = time.monotonic() + 20 * PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in time"
        time.sleep(0.005)


def test_a_pipe_that_nobody_reads_costs_lines_and_no_time(pipe):
    read, stream = pipe
    dropped = []
    handler = QueuedHandler(stream, lambda: dropped.append(1), most=100)
    logging_thread = threading.Thread(
        target=lambda: [handler.emit(record(f"{number} {'x' * 4000}")) for number in range(500)], daemon=True
    )
    logging_thread.start()
    logging_thread.join(20 * PATIENCE)
    assert not logging_thread.is_alive(), "it waited for the pipe"
    assert len(dropped) >= 200
    texts = bytearray()

    def drain():
        while chunk := os.read(read, 1 << 16):
            texts.extend(chunk)
            if len(texts.splitlines()) == 500 - len(dropped) and texts.endswith(b"\n"):
                return

    reading = threading.Thread(target=drain, daemon=True)
    reading.start()
    reading.join(20 * PATIENCE)
    numbers = [int(line.split()[0]) for line in texts.splitlines()]
    assert len(numbers) == 500 - len(dropped)
    assert numbers == sorted(numbers), "what was kept is in order"
    handler.close()


def test_what_was_logged_is_written_when_flush_and_close_return():
    stream = io.StringIO()
    handler = QueuedHandler(stream, lambda: None)
    for number in range(1000):
        handler.emit(record(str(number)))
    handler.flush()
    assert stream.getvalue().split() == [str(number) for number in range(1000)]
    handler.emit(record("last"))
    handler.close()
    assert stream.getvalue().endswith("999\nlast\n")
    assert not handler._thread.is_alive() or handler._thread.join(20 * PATIENCE) is None


def test_a_stream_that_was_closed_loses_lines_and_counts_them():
    stream, dropped = io.StringIO(), []
    handler = QueuedHandler(stream, lambda: dropped.append(1))
    stream.close()
    handler.emit(record("a"))
    wait_for(lambda: dropped, "the count")
    handler.close()
    handler.emit(record("b"))
    assert len(dropped) == 2


def test_a_record_that_cannot_be_shown_does_not_end_its_caller(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler = QueuedHandler(io.StringIO(), lambda: None)
    handler.emit(logging.LogRecord("test", logging.INFO, __file__, 1, "%d", ("no number",), None))
    handler.close()


def test_dropped_lines_are_a_metric():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    registry, stream = CollectorRegistry(), io.StringIO()
    stream.close()
    try:
        setup_logging("test", ObserveSettings(), registry, stream, queued=True)
        logging.getLogger("x").warning("lost")
        sample = lambda: registry.get_sample_value("slacktide_log_dropped_total", {"component": "test"})  # noqa: E731 - asked twice
        wait_for(lambda: sample() == 1.0, "the count")
    finally:
        for handler in root.handlers:
            if isinstance(handler, QueuedHandler):
                handler.close()
        logging.captureWarnings(capture=False)
        root.handlers[:] = handlers
        root.setLevel(level)


TALKER = """
import logging
from slacktide.observe import setup_logging
from slacktide.settings import ObserveSettings
setup_logging("test", ObserveSettings(), None, queued=True)
for number in range(3000):
    logging.getLogger("x").warning("%d %s", number, "x" * 400)
print("went on", flush=True)
"""


def test_a_process_goes_on_and_ends_although_nobody_reads_its_standard_error():
    process = subprocess.Popen([sys.executable, "-c", TALKER], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"went on\n"
        assert process.wait(30 * PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
