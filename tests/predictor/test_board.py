"""The board: what was found to be the same is of now, without being put again."""

from __future__ import annotations

from predictor.board import Board
from tests.predictor.test_service import entry


def times(board, *nodes):
    return [board.get(node).forecast.at for node in nodes]


def test_what_is_not_put_again_is_of_the_time_at_which_it_was_found_to_be_the_same():
    board = Board()
    board.put(entry("a", 1, at=10.0), entry("b", 2, at=10.0), at=10.0)
    board.put(entry("a", 3, at=12.0), at=12.0)
    assert times(board, "a", "b") == [12.0, 12.0]
    assert board.get("b")._replace(forecast=None) == entry("b", 2)._replace(forecast=None)
    board.put(entry("b", 4, at=13.0))
    assert times(board, "a", "b") == [12.0, 13.0]
    assert board.get("c") is None


def test_a_listener_is_told_of_all_that_is_of_now_and_of_what_goes():
    board = Board()
    board.put(entry("a", 1, at=10.0), entry("b", 2, at=10.0))
    told = []
    stands = board.subscribe(
        lambda entries, removed: told.append(([(e.node, e.forecast.at) for e in entries], removed))
    )
    assert [one.node for one in stands] == ["a", "b"]
    board.put(entry("a", 3, at=12.0), at=12.0)
    board.put(entry("c", 3, at=12.5))
    board.remove("b")
    board.remove("b")
    assert told == [([("a", 12.0), ("b", 12.0)], False), ([("c", 12.5)], False), ([("b", 10.0)], True)]
