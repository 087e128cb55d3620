"""Judgements: kept answers are the answers, whatever happens to the values they are about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.plugins.judgements import Judgements

CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("more"), st.lists(st.text("abc", max_size=2), max_size=3)),
        st.tuples(st.just("anew"), st.lists(st.text("abc", max_size=2), max_size=3)),
        st.tuples(st.just("ask"), st.sampled_from(["a", "b", "c"])),
    ),
    max_size=20,
)


@given(changes=CHANGES)
def test_answers_are_those_of_the_values_as_they_are(changes):
    judged, values = Judgements(), []
    for what, given_ in changes:
        if what == "anew":
            values.clear()
        if what != "ask":
            values.extend(value for value in dict.fromkeys(given_) if value not in values)
            continue
        answers = judged.of("column", values, given_, lambda value, letter=given_: letter in value)
        assert answers.tolist() == [given_ in value for value in values]
        assert [values[number] for number in judged.find("column", values, [given_, "zz"])] == (
            [given_] if given_ in values else []
        )


def test_each_value_is_judged_once_for_each_question():
    judged, asked, values = Judgements(), [], ["a", "b"]

    def judge(value: str) -> bool:
        asked.append(value)
        return value == "a"

    for _ in range(3):
        judged.of("column", values, "question", judge)
    values.append("c")
    judged.of("column", values, "question", judge)
    assert asked == ["a", "b", "c"]
    judged.of("other column", values, "question", judge)
    judged.of("column", values, "other question", judge)
    assert asked == ["a", "b", "c"] * 3


def test_what_nobody_asks_for_is_forgotten():
    judged = Judgements()
    for question in range(1000):
        judged.of("column", [1], question, bool)
    for column in range(1000):
        judged.of(f"column {column}", [1], "question", bool)
    assert len(judged._columns) <= 256
    assert all(len(column.answers) <= 128 for column in judged._columns.values())


def test_numbers_may_be_answered():
    answers = Judgements().of("column", ["a", "bbb"], "length", len, "int64")
    assert answers.tolist() == [1, 3]
