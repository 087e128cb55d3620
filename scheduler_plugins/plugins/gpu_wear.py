"""GpuWear: prefers nodes whose GPUs are of the better model, little used and in good health.

```
score = band * places behind + health * (band - 1)        band = 100 / places, in whole points
```

Models form a chain, such as A100 before V100. A node whose cards of the first model are less busy than its threshold
stands in the first place, then come those of the second, and so on; after them the busy ones in the same order, then
nodes of other models. So no health makes up for a worse place: a V100 comes after an A100, and before an A100 that is
over 80 % busy. Health is 1 less the weighted mean of use, memory fragmentation, heat and memory errors of the cards;
what a card does not tell is left out, and a node that tells nothing has none.

The numbers stand in an annotation of the node that the agent publishes (`slacktide.gpus`). A node without it gets 0,
as does one whose annotation is malformed, expired or from the future, with a reason in the score table. Only pods that
ask for a GPU are rated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from scheduler_plugins.framework.interfaces import MAX_SCORE, Handle, PreScorePlugin, ScorePlugin
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.score_reasons import MOST_REASONS, ScoreReasons
from scheduler_plugins.framework.snapshot import Bools, Column, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status
from scheduler_plugins.plugins.node_forecast import whole_seconds
from slacktide import gpus as wire
from slacktide.errors import SettingsError
from slacktide.forecast import AGEING_TTLS, MAX_CLOCK_SKEW_SECONDS
from slacktide.names import GPUS_ANNOTATION

_Weight = Annotated[int, Meta(ge=0, le=100)]


class GpuModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A place in the chain: cards whose name has `model` in it, first choice up to `busy_percent` of mean use."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    busy_percent: Annotated[float, Meta(ge=0, le=100)] = 80.0


class GpuWearArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Order of models, what is worn, and where it stands.

    resource      pods that ask for it are rated; empty: all pods
    annotation    of the node
    cool_celsius, hot_celsius  heat is 0 at the first and 1 at the second
    errors        so many uncorrected memory errors make a card as bad as can be
    """

    models: Annotated[tuple[GpuModel, ...], Meta(max_length=16)] = (GpuModel(model="A100"), GpuModel(model="V100"))
    resource: str = "nvidia.com/gpu"
    annotation: Annotated[str, Meta(min_length=1)] = GPUS_ANNOTATION
    utilisation_weight: _Weight = 4
    fragmentation_weight: _Weight = 2
    heat_weight: _Weight = 2
    errors_weight: _Weight = 2
    cool_celsius: Annotated[float, Meta(ge=-50, le=200)] = 40.0
    hot_celsius: Annotated[float, Meta(ge=-50, le=200)] = 85.0
    errors: Annotated[int, Meta(ge=1, le=1_000_000)] = 10


_ABSENT: Final = 0
_MALFORMED: Final = 1
_READ: Final = 2


class _Read(NamedTuple):
    """What one annotation comes to; place counts from the best, 0."""

    state: int
    problem: str = ""
    at: float = 0.0
    ttl_seconds: float = 0.0
    value: float = 0.0


class GpuWear(PreScorePlugin, ScorePlugin, ScoreReasons, Reusable):
    """Raises SettingsError for arguments that contradict each other."""

    name = "GpuWear"

    def __init__(self, args: GpuWearArgs, handle: Handle) -> None:
        _check(args)
        self._args = args
        self._now = whole_seconds(handle.wall_seconds)
        self._places = 2 * len(args.models) + 1
        self._band = MAX_SCORE // self._places
        self._last: tuple[str, _Read] = ("", _Read(_ABSENT))
        self._prefix = f"{self.name}/{hash(args) & 0xFFFFFFFF:x}"

    def columns(self) -> Sequence[Column]:
        """State and age of the annotation, and the score that its numbers come to."""
        return (
            Column(f"{self._prefix}/state", "int8", self._reader(lambda read: read.state), of_object=True),
            Column(f"{self._prefix}/at", "float64", self._reader(lambda read: read.at), of_object=True),
            Column(f"{self._prefix}/ttl", "float64", self._reader(lambda read: read.ttl_seconds), of_object=True),
            Column(f"{self._prefix}/value", "float64", self._reader(lambda read: read.value), of_object=True),
        )

    def _reader(self, take: Callable[[_Read], float]) -> Callable[[NodeInfo], float]:
        return lambda info: take(self._read(info))

    def _read(self, info: NodeInfo) -> _Read:
        text = info.node.metadata.annotations.get(self._args.annotation) if info.node is not None else None
        if text is None:
            return _Read(_ABSENT)
        # The columns of one node are read one after the other.
        last = self._last
        if last[0] != text:
            last = self._last = (text, self._judge(text))
        return last[1]

    def _judge(self, text: str) -> _Read:
        try:
            gpus = wire.decode(text)
        except wire.GpusError as error:
            return _Read(_MALFORMED, str(error))
        if not gpus.cards:
            return _Read(_MALFORMED, "the annotation names no card")
        place, cards = self._place(gpus.cards)
        value = self._band * (self._places - 1 - place) + round(self._health(cards) * (self._band - 1))
        return _Read(_READ, "", gpus.at, gpus.ttl_seconds, value)

    def _place(self, cards: Sequence[wire.Card]) -> tuple[int, Sequence[wire.Card]]:
        """The best place that the cards of one model have, and these cards."""
        best: tuple[int, Sequence[wire.Card]] = (self._places - 1, cards)
        for rank, model in enumerate(self._args.models):
            same = [card for card in cards if model.model.lower() in card.model.lower()]
            if not same:
                continue
            use = _mean(card.utilisation_percent for card in same)
            # A model that does not say how busy it is stands with the busy ones.
            busy = use is None or use > model.busy_percent
            best = min(best, (rank + busy * len(self._args.models), same), key=lambda found: found[0])
        return best

    def _health(self, cards: Sequence[wire.Card]) -> float:
        """0..1; 0 where the cards tell nothing."""
        args = self._args
        parts = (
            (args.utilisation_weight, _mean(_share(card.utilisation_percent, 100.0) for card in cards)),
            (args.fragmentation_weight, _mean(_fragmented(card) for card in cards)),
            (args.heat_weight, _mean(self._heat(card.temperature_celsius) for card in cards)),
            (args.errors_weight, _mean(_share(card.errors, args.errors) for card in cards)),
        )
        told = [(weight, worn) for weight, worn in parts if worn is not None]
        total = sum(weight for weight, _ in told)
        if not total:
            return 0.0
        return 1.0 - sum(weight * worn for weight, worn in told) / total

    def _heat(self, celsius: float | None) -> float | None:
        if celsius is None:
            return None
        args = self._args
        return max(0.0, min(1.0, (celsius - args.cool_celsius) / (args.hot_celsius - args.cool_celsius)))

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip for pods that ask for no GPU."""
        return SUCCESS if self._rates(pod) else SKIP

    def _rates(self, pod: PodInfo) -> bool:
        return not self._args.resource or bool(pod.requests.get(self._args.resource))

    def reuse_key(self, pod: PodInfo) -> Hashable:
        """Pods that are rated are alike, and so are the others."""
        return self._rates(pod)

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable:  # noqa: ARG002  # part of the protocol
        """The second by which annotations expire."""
        return self._now() if self._rates(pod) else ()

    def _fresh(self, snapshot: Snapshot, rows: Indices) -> Bools:
        age = self._now() - snapshot.column(f"{self._prefix}/at")[rows]
        ttl = snapshot.column(f"{self._prefix}/ttl")[rows]
        fresh: Bools = (age >= -MAX_CLOCK_SKEW_SECONDS) & (age <= AGEING_TTLS * ttl)
        return fresh

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """0..100; the head of the module has the formula."""
        value = snapshot.column(f"{self._prefix}/value")[rows]
        scores: NDArray[Any] = np.where(self._fresh(snapshot, rows), value, 0.0)
        return scores

    def score_reasons(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Mapping[str, str]:  # noqa: ARG002  # part of the extension point
        """Nodes whose annotation is malformed or not of now; one without is no news."""
        states = snapshot.column(f"{self._prefix}/state")[rows]
        odd = (states == _MALFORMED) | ((states == _READ) & ~self._fresh(snapshot, rows))
        now = self._now()
        nodes = (snapshot.nodes[row] for row in rows[odd][:MOST_REASONS])
        return {node.name: f"annotation {self._args.annotation}: {_why(self._read(node), now)}" for node in nodes}


def _why(read: _Read, now: float) -> str:
    if read.state == _MALFORMED:
        return read.problem
    age = now - read.at
    if age < 0:
        return f"from the future, {-age:.0f} s ahead of this clock"
    return f"expired, {age:.0f} s old and good for {AGEING_TTLS * read.ttl_seconds:.0f} s"


def _check(args: GpuWearArgs) -> None:
    problems = []
    names = [model.model.lower() for model in args.models]
    problems += [f"models names {name!r} twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if args.hot_celsius <= args.cool_celsius:
        problems.append(f"hotCelsius {args.hot_celsius:g} must be above coolCelsius {args.cool_celsius:g}")
    if problems:
        raise SettingsError([f"arguments of plugin GpuWear: {problem}" for problem in problems])


def _mean(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told else None


def _share(value: float | None, whole: float) -> float | None:
    return None if value is None else max(0.0, min(1.0, value / whole))


def _fragmented(card: wire.Card) -> float | None:
    """How much of the free memory is not in the largest free block."""
    if card.free_block_bytes is None or card.memory_total_bytes is None or card.memory_used_bytes is None:
        return None
    free = card.memory_total_bytes - card.memory_used_bytes
    return None if free <= 0 else max(0.0, min(1.0, 1.0 - card.free_block_bytes / free))


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(GpuWear.name, GpuWear, GpuWearArgs)
