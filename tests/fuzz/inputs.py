"""Contents that a kernel file could hold, from as it should be over nearly so to anything; and how many of them.

`SLACKTIDE_FUZZ_EXAMPLES` is how many inputs there are in all; a normal run takes few, `make fuzz` a million.
"""

from __future__ import annotations

import os
import random
import re

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

VARIABLE = "SLACKTIDE_FUZZ_EXAMPLES"
IN_ALL = int(os.environ.get(VARIABLE, "1600"))
PROPERTIES = 16
"""So many quick properties share the inputs."""

FUZZ = settings(
    max_examples=max(20, IN_ALL // PROPERTIES),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
SLOW = settings(FUZZ, max_examples=max(10, IN_ALL // PROPERTIES // 10))
"""For properties that write files."""

EDGES = (0, 1, 65535, 65536, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 9223372036854771712, 10**40)
WORDS = (
    *(b"max", b"some", b"full", b"avg10=0.00", b"total", b"total=", b"Read", b"Write", b"Total", b"8:0", b"253:16"),
    *(b"nr_periods", b"nr_throttled", b"throttled_time", b"usage_usec", b"throttled_usec", b"nr_bursts"),
    *(
        b"inactive_file",
        b"total_inactive_file",
        b"oom_kill",
        b"high",
        b"frozen",
        b"populated",
        b"rbytes=",
        b"wios=",
    ),
    *(b"FROZEN", b"THAWED", b"L3", b"MB", b"L3CODE", b"Unavailable", b"Error", b"0-3", b"0,2-5", b"cpu", b"cpu0"),
    *(b"MemTotal:", b"MemAvailable:", b"SwapFree:", b"kB", b"pod", b"kubepods", b"cgroup", b"cgroup2", b"-", b"rw"),
    *(
        "²".encode(),
        "٣".encode(),
        b"\x00",
        b"\xff\xfe",
        b"1e9",
        b"0x1f",
        b"1_000",
        b"+5",
        b"-1",
        b"nan",
        b"inf",
        b"\r",
    ),
)
GLUE = (b" ", b" ", b" ", b"", b"=", b":", b",", b";", b"\t", b"  ")
ENDS = (b"\n", b"\n", b"\n", b"\r\n", b"", b"\x00\n")


def token(chance: random.Random) -> bytes:
    """A word that kernel files hold, a number, or anything."""
    kind = chance.random()
    if kind < 0.5:
        return chance.choice(WORDS)
    if kind < 0.9:
        number = chance.choice(EDGES) if kind < 0.6 else chance.randrange(-5, 1_000_000)
        return str(number).encode()
    return chance.randbytes(chance.randrange(12))


def lines(seed: int) -> bytes:
    """Lines of tokens that look like a kernel file from afar; now and then very many of them."""
    chance = random.Random(seed)
    parts = []
    for _ in range(chance.randrange(8)):
        for _ in range(chance.randrange(6)):
            parts += [token(chance), chance.choice(GLUE)]
        parts.append(chance.choice(ENDS))
    data = b"".join(parts)
    return data * chance.randrange(2, 500) if chance.random() < 0.02 else data


LINES = st.integers(0, 2**64 - 1).map(lines)
"""From a seed, as drawing token by token would cost ten times as much."""

CONTENT = st.one_of(LINES, LINES, LINES, st.binary(max_size=60), st.just(b""))
TEXT = CONTENT.map(lambda data: data.decode("utf-8", "replace"))


def numbers_in(data: bytes) -> set[int]:
    """All whole numbers that stand in a text, in decimal digits, whatever is around them."""
    return {int(digits) for digits in re.findall(rb"[0-9]{1,60}", data)}
