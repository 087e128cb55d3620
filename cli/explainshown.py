"""How `explain` puts its answers on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli import evictionexplained, ladderexplained
from cli.cycles import REASON_COLUMNS, reason_rows, table
from cli.happenings import COLUMNS as EVENT_COLUMNS
from cli.happenings import cells
from cli.podexplained import HOLD_COLUMNS, PodExplanation, held_line, hold_rows
from cli.podview import show_age, show_bytes, show_cpu
from slacktide.forecast import closed_words

if TYPE_CHECKING:
    from cli.evictionexplained import EvictionsExplained
    from cli.explained import Explanation
    from cli.explaining import NodeAnswer
    from cli.output import Output
    from slacktide.explaining import Ladder, Published


def show_node(out: Output, said: NodeAnswer, now: float, most: int) -> None:
    """The sum, its last changes, and the ladder, with `most` changes of each; `now` is seconds since the epoch."""
    if said.sums is None:
        out.text(f"{said.node}: {said.reason}")
    else:
        _sum(out, said.sums)
    if said.published is not None:
        _published(out, said.published, now, most)
    if said.ladder is not None:
        _ladder(out, said.ladder, now, most)
    show_silent(out, said.silent, "what is said here is from the node object and those who answered")


def show_silent(out: Output, problems: Sequence[str], instead: str) -> None:
    """Who could not be asked, what was tried, and what the answer rests on then."""
    for problem in problems:
        out.say(problem)
    if problems:
        out.say(instead)


def _sum(out: Output, said: Explanation) -> None:
    state = closed_words(said.closed) if said.closed else said.freshness
    out.text(f"{said.node}: {state}, {show_age(max(0.0, said.age_seconds))} old")
    rows = [
        [line.sign, line.term, show_cpu(line.amount.cpu_millis), show_bytes(line.amount.memory_bytes), line.why]
        for line in said.lines
    ]
    out.table(("", "TERM", "CPU", "MEMORY", "REASON"), rows)
    for remark in said.remarks:
        out.text(f"* {remark}")


def _published(out: Output, published: Published, now: float, most: int) -> None:
    kept = ladderexplained.since(published.since, now)
    rows = ladderexplained.published_rows(published, now, most)
    if rows:
        out.text(f"\nlast changes of what is offered (the predictor's record, {kept}):")
        out.table(ladderexplained.PUBLISHED_COLUMNS, rows)
    else:
        out.text(f"\nno change of what is offered is on record (the predictor's, {kept})")
    for remark in ladderexplained.published_remarks(published):
        out.text(f"* {remark}")


def _ladder(out: Output, ladder: Ladder, now: float, most: int) -> None:
    out.text("")
    for line in ladderexplained.headline(ladder, now):
        out.text(line)
    out.table(ladderexplained.RUNG_COLUMNS, ladderexplained.rung_rows(ladder))
    out.text("\nfigures that rungs look at, and where something happens:")
    out.table(ladderexplained.SIGNAL_COLUMNS, ladderexplained.signal_rows(ladder))
    kept = ladderexplained.since(ladder.since, now)
    rows = ladderexplained.change_rows(ladder, now, most)
    if rows:
        out.text(f"\nlast changes of the ladder (the agent's record, {kept}):")
        out.table(ladderexplained.CHANGE_COLUMNS, rows)
    else:
        out.text(f"\nno rung moved (the agent's record, {kept})")


def show_pod(out: Output, said: PodExplanation, now: float, nodes: int) -> None:
    """Where a pod is and why, with scores of so many `nodes`; what holds it; when it was told to go."""
    where = f"{said.state} on {said.node}" if said.node else said.state
    out.text(f"{said.pod}: {where}; {said.why}")
    out.text(f"tier {said.tier}: {said.tier_why}; scheduler {said.scheduler}")
    out.text(f"from {said.source}")
    if said.blocking:
        out.text("")
        out.table(REASON_COLUMNS, reason_rows(said.blocking))
    if said.cycle is not None and said.cycle.scores:
        out.text("\nraw / normalised / weighted:")
        out.table(*table(said.cycle, nodes))
    _held(out, said, now)
    for remark in said.remarks:
        out.text(f"* {remark}")
    for action in said.actions:
        out.text(f"-> {action}")
    show_silent(out, said.silent, "what is said here is from the pod object and those who answered")


def _held(out: Output, said: PodExplanation, now: float) -> None:
    if said.held is not None:
        out.text(f"\n{held_line(said.held, now)}")
        rows = hold_rows(said.held)
        if rows:
            out.table(HOLD_COLUMNS, rows)
    for decision in said.decisions[:1]:
        out.text(f"\ntold to go: {evictionexplained.sentence(said.node, decision, now)}")
        out.table(evictionexplained.NUMBER_COLUMNS, evictionexplained.number_rows(decision))


def show_evictions(out: Output, said: EvictionsExplained, now: float, most: int) -> None:
    """The newest `most` decisions; of one pod with their numbers. Without any record: what events say."""
    found = evictionexplained.ordered(said.nodes)[:most]
    if said.pod:
        for node, decision in found:
            out.text(evictionexplained.sentence(node, decision, now))
            out.table(evictionexplained.NUMBER_COLUMNS, evictionexplained.number_rows(decision))
            out.text("")
    elif found:
        out.table(evictionexplained.COLUMNS, evictionexplained.rows(found, now))
    for one in said.nodes:
        if one.evictions is None:
            continue
        if not one.evictions.decisions:
            out.text(evictionexplained.nothing(said.pod, one, now))
        for remark in evictionexplained.budgets(one.evictions):
            out.text(f"* {f'{one.node}: ' if one.node else ''}{remark}")
    if said.events:
        out.text("what the cluster's events say:")
        out.table(EVENT_COLUMNS, [cells(event, now) for event in said.events])
    show_silent(out, said.silent, "what is said here is from the others")
