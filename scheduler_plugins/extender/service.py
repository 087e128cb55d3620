"""The extender's verbs: bytes of a request in, status and bytes of the answer out. Knows nothing of sockets.

Pods of tiers that are not judged are answered before anything else, without the snapshot, its lock and the plugins:
whatever happens to those, such pods are placed as if there were no extender.

Status codes: 200 for every request that was understood, failures included where the protocol has an Error field
(filter, bind); 503 for failures of prioritize and preempt; 400 for a body that is not usable. Each body that is no
answer of the protocol is {"Error": text}.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from scheduler_plugins.extender import judge, ratings
from scheduler_plugins.extender.metrics import ExtenderMetrics
from scheduler_plugins.extender.questions import Memory, Question, Unusable, asked, filter_answer
from scheduler_plugins.extender.turns import Turns
from scheduler_plugins.extenders import wire
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.status import PluginFailure
from slacktide.errors import SlacktideError
from slacktide.observe import get_logger
from slacktide.tier import Tier

_log = get_logger("extender.service")

FILTER: Final = "filter"
PRIORITIZE: Final = "prioritize"
PREEMPT: Final = "preempt"
BIND: Final = "bind"
_ERROR_FIELD: Final = frozenset({FILTER, BIND})


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back: HTTP status and a JSON body."""

    status: HTTPStatus
    body: bytes


class CannotAnswer(SlacktideError):
    """A request that was understood and cannot be answered now; the text says why."""


class Binding(Protocol):
    """Carries out a binding order."""

    def bind(self, order: wire.ExtenderBindingArgs) -> str:
        """Empty once the pod is bound, else why it is not."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """How the service answers. `tiers` are judged, all others pass; `highest` is the score of the best node.

    A question waits at most `wait_seconds` for the ones before it.
    """

    tiers: frozenset[Tier]
    highest: int
    wait_seconds: float


class ExtenderService:
    """Answers requests, from any number of threads; the plugins judge one pod at a time.

    `not_ready` says why nothing can be judged yet, or None; `binding` is None where the bind verb is off.
    """

    def __init__(
        self,
        framework: Framework,
        cache: Cache,
        reader: PodReader,
        terms: Terms,
        metrics: ExtenderMetrics,
        not_ready: Callable[[], str | None],
        binding: Binding | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._framework = framework
        self._cache = cache
        self._terms = terms
        self._metrics = metrics
        self._not_ready = not_ready
        self._binding = binding
        self._monotonic = monotonic
        self._snapshot = framework.new_snapshot()
        self._memory = Memory(reader)
        self._turns = Turns()
        self._judging_since: float | None = None
        self._verbs: dict[str, Callable[[bytes], tuple[str, bytes]]] = {
            FILTER: self._filter,
            PRIORITIZE: self._prioritize,
            PREEMPT: self._preempt,
            BIND: self._bind,
        }

    @property
    def verbs(self) -> tuple[str, ...]:
        """Verbs that `answer` knows."""
        return tuple(self._verbs)

    def judging_seconds(self) -> float:
        """How long the question that is being judged has taken so far; 0 where there is none."""
        since = self._judging_since
        return 0.0 if since is None else self._monotonic() - since

    def answer(self, verb: str, body: bytes) -> Reply:
        """Answer one request; never raises. `verb` is one of `verbs`."""
        started, cpu = self._monotonic(), time.thread_time()
        try:
            outcome, answer = self._verbs[verb](body)
            reply = Reply(HTTPStatus.OK, answer)
        except (Unusable, wire.WireError) as error:
            outcome, reply = "refused", Reply(HTTPStatus.BAD_REQUEST, error_body(str(error)))
        except (CannotAnswer, PluginFailure) as error:
            outcome, reply = "failed", _failure(verb, str(error))
            _log.warning("request not answered", verb=verb, reason=str(error))
        except Exception as error:  # noqa: BLE001 - one request must not take the others with it
            outcome, reply = (
                "failed",
                _failure(verb, f"internal error ({type(error).__name__}); see the extender's log"),
            )
            _log.exception("request failed", verb=verb)
        self._metrics.answered(verb, outcome, self._monotonic() - started, time.thread_time() - cpu)
        return reply

    def _filter(self, body: bytes) -> tuple[str, bytes]:
        question = wire.decode(body, Question)
        pod = self._memory.pod(bytes(question.pod))
        nodes = asked(question, self._memory)
        answer = judge.Answer(kept=nodes.names)
        if pod.tier in self._terms.tiers:
            with self._judging(pod) as snapshot:
                answer = judge.filter_nodes(self._framework, pod, snapshot, nodes.names)
        return self._outcome(pod), filter_answer(nodes, answer, self._memory)

    def _prioritize(self, body: bytes) -> tuple[str, bytes]:
        question = wire.decode(body, Question)
        pod = self._memory.pod(bytes(question.pod))
        nodes = asked(question, self._memory)
        if pod.tier not in self._terms.tiers:
            return "passed", b"[]"
        with self._judging(pod) as snapshot:
            scores = judge.score_nodes(self._framework, pod, snapshot, nodes.names, self._terms.highest, nodes.found)
        return "judged", ratings.encoded(nodes.names, scores)

    def _preempt(self, body: bytes) -> tuple[str, bytes]:
        question = wire.decode(body, wire.ExtenderPreemptionArgs)
        pod = self._memory.checked(question.pod)
        candidates = _candidates(question)
        left: list[str] = list(candidates)
        if pod.tier in self._terms.tiers:
            uids = {name: [victim.uid for victim in one.pods or ()] for name, one in candidates.items()}
            with self._judging(pod) as snapshot:
                left = judge.preempt_on(self._framework, pod, snapshot, uids)
        result = wire.ExtenderPreemptionResult(node_name_to_meta_victims={name: candidates[name] for name in left})
        return self._outcome(pod), wire.encode(result)

    def _bind(self, body: bytes) -> tuple[str, bytes]:
        order = wire.decode(body, wire.ExtenderBindingArgs)
        missing = [
            name
            for name, value in (
                ("PodName", order.pod_name),
                ("PodNamespace", order.pod_namespace),
                ("PodUID", order.pod_uid),
                ("Node", order.node),
            )
            if not value
        ]
        if missing:
            raise Unusable(f"a binding order needs {', '.join(missing)}")
        if self._binding is None:
            raise CannotAnswer("binding is off here: remove bindVerb from the scheduler, or set bind = true here")
        problem = self._binding.bind(order)
        return ("failed" if problem else "judged"), wire.encode(wire.ExtenderBindingResult(error=problem))

    def _outcome(self, pod: PodInfo) -> str:
        return "judged" if pod.tier in self._terms.tiers else "passed"

    @contextmanager
    def _judging(self, pod: PodInfo) -> Iterator[Snapshot]:
        """The snapshot, up to date, for one question. Raises CannotAnswer."""
        problem = self._not_ready()
        if problem:
            raise CannotAnswer(f"not ready: {problem}")
        if not self._turns.take(self._terms.wait_seconds):
            waiting, seconds = self._turns.waiting, self.judging_seconds()
            raise CannotAnswer(
                f"{pod.key} had no turn within {self._terms.wait_seconds:g} s: another pod has been judged for "
                f"{seconds:.1f} s, and {waiting} more wait"
            )
        try:
            self._judging_since = self._monotonic()
            self._cache.refresh(self._snapshot)
            yield self._snapshot
        finally:
            self._judging_since = None
            self._turns.give()


def error_body(text: str) -> bytes:
    """Body of an answer that is none of the protocol's; also one of filter and bind that says only Error."""
    return msgspec.json.encode({"Error": text})


def _failure(verb: str, text: str) -> Reply:
    return Reply(HTTPStatus.OK if verb in _ERROR_FIELD else HTTPStatus.SERVICE_UNAVAILABLE, error_body(text))


def _candidates(question: wire.ExtenderPreemptionArgs) -> dict[str, wire.WireMetaVictims]:
    """Victims by uid, whichever form the question has."""
    if question.node_name_to_meta_victims is not None:
        return question.node_name_to_meta_victims
    if question.node_name_to_victims is None:
        raise Unusable("the request has neither NodeNameToVictims nor NodeNameToMetaVictims")
    return {
        name: wire.WireMetaVictims(
            pods=[wire.MetaPod(uid=pod.metadata.uid) for pod in victims.pods or ()],
            pdb_violations=victims.pdb_violations,
        )
        for name, victims in question.node_name_to_victims.items()
    }
