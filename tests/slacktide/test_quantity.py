from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide import quantity
from slacktide.errors import QuantityError
from slacktide.quantity import MAX_INT64, NANO, Format, Quantity, parse

# text, canonical text, value(), milli_value()
KNOWN = [
    ("0", "0", 0, 0),
    ("-0", "0", 0, 0),
    ("0Ki", "0", 0, 0),
    ("0.000", "0", 0, 0),
    ("0e12", "0", 0, 0),
    ("1", "1", 1, 1000),
    ("+1", "1", 1, 1000),
    ("-1", "-1", -1, -1000),
    ("007", "7", 7, 7000),
    (".5", "500m", 1, 500),
    ("5.", "5", 5, 5000),
    ("1.G", "1G", 10**9, 10**12),
    (".001", "1m", 1, 1),
    (".0001k", "100m", 1, 100),
    ("0.5", "500m", 1, 500),
    ("200m", "200m", 1, 200),
    ("1000m", "1", 1, 1000),
    ("1500m", "1500m", 2, 1500),
    ("100n", "100n", 1, 1),
    ("1u", "1u", 1, 1),
    ("1k", "1k", 1000, 10**6),
    ("1000k", "1M", 10**6, 10**9),
    ("1E", "1E", 10**18, MAX_INT64),
    ("12E", "12E", MAX_INT64, MAX_INT64),
    ("1000E", "1000E", MAX_INT64, MAX_INT64),
    ("1E3", "1e3", 1000, 10**6),
    ("1e3", "1e3", 1000, 10**6),
    ("1e+3", "1e3", 1000, 10**6),
    ("1e4", "10e3", 10**4, 10**7),
    ("1.5e3", "1500", 1500, 1500000),
    ("1e-3", "1e-3", 1, 1),
    ("1e-9", "1e-9", 1, 1),
    ("1Ki", "1Ki", 1024, 1024000),
    ("1024Mi", "1Gi", 1 << 30, 1000 << 30),
    ("1.5Gi", "1536Mi", 3 << 29, 3000 << 29),
    ("100000000Ki", "100000000Ki", 102400000000, 102400000000000),
    ("1000Ki", "1000Ki", 1024000, 1024000000),
    ("0.5Ki", "512", 512, 512000),
    ("0.001Ki", "1024m", 2, 1024),
    ("-1.5Gi", "-1536Mi", -(3 << 29), -(3000 << 29)),
    ("64Mi", "64Mi", 64 << 20, 64000 << 20),
    ("8Ei", "9223372036854775807", MAX_INT64, MAX_INT64),
    ("9Ei", "9223372036854775807", MAX_INT64, MAX_INT64),
    ("9223372036854775807Ki", "9223372036854775807", MAX_INT64, MAX_INT64),
    ("-9Ei", "-9223372036854775807", -MAX_INT64, -MAX_INT64),
    ("0.000000000001Ki", "2n", 1, 1),
    ("0.1n", "1n", 1, 1),
    ("-0.1n", "-1n", -1, -1),
    ("1e-40", "1e-9", 1, 1),
    ("1000000000000000000001", "1000000000000000000001", MAX_INT64, MAX_INT64),
]


@pytest.mark.parametrize(("text", "canonical", "value", "milli"), KNOWN)
def test_known_values(text, canonical, value, milli):
    amount = parse(text)
    assert (str(amount), amount.value(), amount.milli_value()) == (canonical, value, milli)


BLANKS = ["", " ", " 1", "1 ", "1 Ki", "1\n", "\t1", "1e 3"]
NUMBERS = ["1.5.2", "1..5", "0x1", "1_000", "1,5", "\uff11", "1\u0663", "--1", "+-1", "-", "+", ".", "-.", "inf", "NaN"]
SUFFIX = ["1K", "1ki", "1KI", "1kI", "1i", ".5i", "-3.01i", "0.1mi", "0.1am", "aoeu", "1.1.M", "1+1.0M"]
BARE = ["m", "Ki", "E", "1mm", "1Kim", "1s", "5Gib"]
EXPONENT = ["1e", "1e+", "-3.01e-", "1e3.5", "1ee3", "1E3Ki", "e3", "1e65", "1e99999999999999999999"]
REFUSED = [*BLANKS, *NUMBERS, *SUFFIX, *BARE, *EXPONENT, "9" * 129]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_quantity_is_refused_and_named(text):
    with pytest.raises(QuantityError) as caught:
        parse(text)
    assert repr(text[:128]) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1e", "one exa is written 1E"),
        ("1K", "unknown suffix 'K'; known: n u m k M"),
        ("1ki", "unknown suffix 'ki'"),
        (" 1", "blanks"),
        ("", "empty"),
        ("1e65", "exponent is at most 64"),
        ("abc", "expected a number"),
    ],
)
def test_the_error_says_what_to_do(text, hint):
    with pytest.raises(QuantityError, match=hint):
        parse(text)


@pytest.mark.parametrize("junk", [None, True, False, [], {}, b"1", float("nan"), float("inf"), -float("inf")])
def test_only_text_and_finite_numbers_are_read(junk):
    with pytest.raises(QuantityError):
        parse(junk)


@pytest.mark.parametrize(
    ("number", "text"), [(0.1, "100m"), (2, "2"), (-3, "-3"), (1.0, "1"), (1e22, "10e21"), (5e-7, "500e-9"), (0.0, "0")]
)
def test_bare_json_numbers_are_read_by_their_decimal_text(number, text):
    assert str(parse(number)) == text


DIGITS = st.text("0123456789", max_size=12)
SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(1024) ** (power + 1) for power, suffix in enumerate("KMGTPE")},
    **{f"{e}{power}": Fraction(10) ** int(power) for e in "eE" for power in ("0", "1", "7", "+3", "+12", "-2", "-12")},
}


@st.composite
def quantities(draw) -> tuple[str, Fraction]:
    """Text of the grammar, and what it says, computed by other means."""
    whole, dot, fraction = draw(DIGITS), draw(st.booleans()), draw(DIGITS)
    if not whole and not (dot and fraction):
        whole = "0"
    number = f"{whole}.{fraction}" if dot else whole
    sign = draw(st.sampled_from(["", "+", "-"]))
    suffix = draw(st.sampled_from(sorted(SUFFIXES)))
    exact = Fraction(f"{whole or '0'}.{(fraction if dot else '') or '0'}") * SUFFIXES[suffix]
    return f"{sign}{number}{suffix}", -exact if sign == "-" else exact


def away_from_zero(amount: Fraction) -> int:
    size = abs(amount)
    whole = size.numerator // size.denominator
    whole += size.denominator * whole != size.numerator
    return -whole if amount < 0 else whole


@given(quantities())
def test_parse_agrees_with_fractions(case):
    text, exact = case
    nanos = away_from_zero(exact * NANO)
    if text.endswith("i"):
        nanos = max(-MAX_INT64 * NANO, min(MAX_INT64 * NANO, nanos))
    amount = parse(text)
    assert amount.nanos == nanos
    for ours, unit in ((amount.value(), 1), (amount.milli_value(), 1000)):
        expected = away_from_zero(Fraction(nanos, NANO) * unit)
        assert ours == max(-MAX_INT64, min(MAX_INT64, expected))


@given(quantities())
def test_canonical_text_says_the_same_amount_and_is_its_own_canonical_text(case):
    text = str(parse(case[0]))
    assert parse(text).nanos == parse(case[0]).nanos
    assert str(parse(text)) == text


@given(quantities())
def test_canonical_text_has_no_fraction_and_no_shorter_form(case):
    text = str(parse(case[0]))
    assert "." not in text
    digits = text.lstrip("-").rstrip("numkMGTPEi").partition("e")[0].rstrip("K")
    if text.endswith("i"):
        assert int(digits) % 1024 or text.endswith("Ei")
    elif text != "0" and not text.endswith("E"):
        assert not digits.endswith("000") or parse(text).format is Format.BINARY_SI


@given(st.text(max_size=8))
def test_arbitrary_text_is_a_quantity_or_a_quantity_error(text):
    try:
        amount = parse(text)
    except QuantityError:
        return
    assert isinstance(amount, Quantity)
    assert text.isascii()
    assert text == text.strip()


@given(st.integers(-(10**30), 10**30))
def test_integers_survive(number):
    assert parse(number).nanos == number * NANO


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e60, max_value=1e60))
def test_floats_are_read_by_their_shortest_text(number):
    assert parse(number).nanos == away_from_zero(Fraction(repr(number)) * NANO)


@pytest.mark.parametrize(
    ("source", "count"), [("1000", 1000), ("1k", 1000), ("4e3", 4000), (200, 200), ("2000000m", 2000), (0, 0)]
)
def test_batch_cpu_takes_whole_counts(source, count):
    assert quantity.batch_cpu(source) == count


@pytest.mark.parametrize("source", ["200m", "0.5", "0.2", "1.0001", 0.5, "1n"])
def test_batch_cpu_refuses_fractions(source):
    with pytest.raises(QuantityError, match="whole number"):
        quantity.batch_cpu(source)


def test_helpers_round_up():
    assert quantity.cpu_millis("0.0001") == 1
    assert quantity.cpu_millis("2") == 2000
    assert quantity.memory_bytes("1500m") == 2
    assert quantity.memory_bytes("64Mi") == 64 << 20


@given(st.integers(-(10**15), 10**15))
def test_format_millis_is_read_back(millis):
    assert quantity.cpu_millis(quantity.format_millis(millis)) == millis


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (3 << 29, "1.5Gi"),
        ((1 << 30) - 1, "1024Mi"),
        (-(3 << 29), "-1.5Gi"),
        (1 << 60, "1Ei"),
    ],
)
def test_format_bytes(count, text):
    assert quantity.format_bytes(count) == text


@given(st.integers(0, (1 << 63) - 1))
def test_format_bytes_is_within_five_percent(count):
    assert abs(parse(quantity.format_bytes(count)).value() - count) * 20 <= count
