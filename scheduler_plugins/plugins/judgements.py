"""Judgements: what a plugin thinks of the distinct values of a node column, kept from cycle to cycle.

Thousands of nodes share few taint sets or zone names, and many pods ask the same of them. A judgement is made once for
each question and value; a cycle then only spreads the answers over the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")

_MOST_COLUMNS: Final = 256
_MOST_QUESTIONS: Final = 128


class _Column:
    """Answers about one column, by question; `values` is what the column's values were when they were given."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.answers: dict[Hashable, NDArray[Any]] = {}
        self.numbers: dict[Any, int] = {}

    def keep_up(self, values: Sequence[Any]) -> None:
        """Answers stay good while values are only added; a column that was numbered anew is forgotten."""
        known = len(self.values)
        if self.values != (values if len(values) == known else values[:known]):
            self.answers.clear()
            self.numbers.clear()
            self.values = list(values)
        elif len(values) > known:
            self.values.extend(values[known:])

    def find(self, value: Any) -> int | None:
        for number in range(len(self.numbers), len(self.values)):
            self.numbers[self.values[number]] = number
        return self.numbers.get(value)


class Judgements:
    """Belongs to one plugin and one thread. Bounded: the columns and questions not asked for longest are forgotten."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}

    def of(
        self, column: str, values: Sequence[V], question: Hashable, judge: Callable[[V], Any], dtype: str = "bool"
    ) -> NDArray[Any]:
        """Answers of `judge`, one for each of `values` (as `Snapshot.label` and `Snapshot.interned` give them).

        Equal questions about one column must always have equal answers.
        """
        kept = self._column(column, values)
        answers = kept.answers.pop(question, None)
        if answers is None:
            _make_room(kept.answers, _MOST_QUESTIONS)
            answers = _ask(judge, values, dtype)
        elif len(answers) < len(values):
            answers = np.concatenate([answers, _ask(judge, values[len(answers) :], dtype)])
        kept.answers[question] = answers
        return answers

    def find(self, column: str, values: Sequence[Any], wanted: Iterable[Any]) -> list[int]:
        """Numbers of those of `wanted` that are among `values`, which are hashable and all different."""
        kept = self._column(column, values)
        numbers = (kept.find(value) for value in wanted)
        return [number for number in numbers if number is not None]

    def _column(self, column: str, values: Sequence[Any]) -> _Column:
        kept = self._columns.pop(column, None) or _Column()
        _make_room(self._columns, _MOST_COLUMNS)
        self._columns[column] = kept
        kept.keep_up(values)
        return kept


def _make_room(kept: dict[Any, Any], most: int) -> None:
    while len(kept) >= most:
        del kept[next(iter(kept))]


def _ask(judge: Callable[[V], Any], values: Sequence[V], dtype: str) -> NDArray[Any]:
    return np.fromiter((judge(value) for value in values), dtype=dtype, count=len(values))
