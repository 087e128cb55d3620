"""An extender over HTTP, as the scheduling cycle asks it.

Differences from the stock scheduler's client, all on the safe side: a node of the answer that was not asked about is
an error also where whole nodes are sent, and what is scored afterwards is the node as the cache has it, with its pods
(kubernetes#141781). Source: kubernetes pkg/scheduler/extender.go, 1.35.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from scheduler_plugins.config.durations import seconds_of
from scheduler_plugins.config.types import ExtenderConfig
from scheduler_plugins.extenders import wire
from scheduler_plugins.extenders.connection import CallError, Connections
from scheduler_plugins.framework.extending import ExtenderError, ExtenderFilter, Victims
from scheduler_plugins.framework.interfaces import MAX_SCORE
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.status import SUCCESS, Status, failed
from slacktide.errors import SettingsError
from slacktide.objects import Node

T = TypeVar("T")

PodOn = Callable[[str, str], PodInfo | None]
"""(node name, uid) -> the pod as the cache has it there."""

_DEFAULT_TIMEOUT_SECONDS: Final = 5.0
_SCALE: Final = MAX_SCORE // wire.MAX_SCORE
_KEPT_NODES: Final = 20_000
_LARGEST_SCORE: Final = 1 << 53
"""Larger totals could not be added up with those of plugins in 64 bits."""


def make_extenders(configs: Sequence[ExtenderConfig], pod_on: PodOn) -> tuple[HttpExtender, ...]:
    """Clients of all extenders, those that may be ignored last. Raises SettingsError for certificates it cannot use."""
    made, problems = [], []
    for config in configs:
        try:
            made.append(HttpExtender(config, pod_on))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)
    return tuple(sorted(made, key=lambda extender: extender.ignorable))


class HttpExtender:
    """One extender of the configuration; see `framework.extending.Extender`. Safe for many threads."""

    def __init__(self, config: ExtenderConfig, pod_on: PodOn) -> None:
        self.name = config.url_prefix
        self.ignorable = config.ignorable
        self.filters = bool(config.filter_verb)
        self.prioritizes = bool(config.prioritize_verb)
        self.binds = bool(config.bind_verb)
        self.preempts = bool(config.preempt_verb)
        self._config = config
        self._pod_on = pod_on
        self._managed = frozenset(resource.name for resource in config.managed_resources)
        self._connections = Connections(config, seconds_of(config.http_timeout) or _DEFAULT_TIMEOUT_SECONDS)
        self._encoded: dict[str, tuple[Node, msgspec.Raw]] = {}

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def interested(self, pod: PodInfo) -> bool:
        """Whether a container asks for, or is limited in, a resource that it manages; every pod when it names none."""
        if not self._managed:
            return True
        spec = pod.pod.spec
        return any(
            name in self._managed
            for container in (*spec.containers, *spec.init_containers)
            for name in (*container.resources.requests, *container.resources.limits)
        )

    def filter(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> ExtenderFilter:
        """Ask which of `nodes` are left; one that the answer does not name is lost. Raises ExtenderError."""
        asked = frozenset(node.name for node in nodes)
        result = self._ask(self._config.filter_verb, self._question(pod, nodes), wire.ExtenderFilterResult)
        if result.error:
            raise self._error(f"filter failed there: {result.error}")
        kept = frozenset(self._kept(result))
        if unknown := kept - asked:
            raise self._error(f"filter let pass {len(unknown)} node(s) that it was not asked about: {min(unknown)!r}")
        unresolvable = _known(result.failed_and_unresolvable_nodes, asked)
        refused = _known(result.failed_nodes, asked - unresolvable.keys())
        return ExtenderFilter(kept, refused, unresolvable)

    def prioritize(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Mapping[str, int]:
        """Score, times weight, times 10 of each node that the answer names. Raises ExtenderError."""
        asked = frozenset(node.name for node in nodes)
        answer = self._ask(self._config.prioritize_verb, self._question(pod, nodes), list[wire.HostPriority])
        totals: dict[str, int] = {}
        for one in answer:
            if one.host in asked:
                totals[one.host] = totals.get(one.host, 0) + one.score * self._config.weight * _SCALE
        if any(abs(total) > _LARGEST_SCORE for total in totals.values()):
            raise self._error("prioritize answered scores too large to count")
        return totals

    def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Let it bind the pod; a call that failed is not repeated, as it may have had an effect."""
        meta = pod.pod.metadata
        order = wire.ExtenderBindingArgs(
            pod_name=meta.name, pod_namespace=meta.namespace, pod_uid=meta.uid, node=node_name
        )
        try:
            result = self._ask(self._config.bind_verb, order, wire.ExtenderBindingResult, once=True)
        except ExtenderError as error:
            return failed(str(error), error).by(self.name)
        if result.error:
            return failed(f"extender {self.name}: bind failed there: {result.error}").by(self.name)
        return SUCCESS

    def preempt(self, pod: PodInfo, candidates: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Ask which candidates are left, with what victims; a node may be left with none. Raises ExtenderError.

        It may name other victims than it was asked about, if they are on the node.
        """
        question = self._preempt_question(pod, candidates)
        result = self._ask(self._config.preempt_verb, question, wire.ExtenderPreemptionResult)
        answer = result.node_name_to_meta_victims or {}
        if unknown := answer.keys() - candidates.keys():
            raise self._error(f"preempt answered node {min(unknown)!r}, which is no candidate")
        return {name: self._victims(name, candidates[name], meta) for name, meta in answer.items()}

    def _preempt_question(self, pod: PodInfo, candidates: Mapping[str, Victims]) -> wire.ExtenderPreemptionArgs:
        if self._config.node_cache_capable:
            metas = {
                name: wire.WireMetaVictims(
                    pods=[wire.MetaPod(uid=victim.uid) for victim in victims.pods],
                    pdb_violations=victims.pdb_violations,
                )
                for name, victims in candidates.items()
            }
            return wire.ExtenderPreemptionArgs(pod=pod.pod, node_name_to_meta_victims=metas)
        whole = {
            name: wire.WireVictims(pods=[victim.pod for victim in victims.pods], pdb_violations=victims.pdb_violations)
            for name, victims in candidates.items()
        }
        return wire.ExtenderPreemptionArgs(pod=pod.pod, node_name_to_victims=whole)

    def _victims(self, node_name: str, asked: Victims, meta: wire.WireMetaVictims) -> Victims:
        by_uid = {victim.uid: victim for victim in asked.pods}
        pods = []
        for one in meta.pods or ():
            victim = by_uid.get(one.uid) or self._pod_on(node_name, one.uid)
            if victim is None:
                raise self._error(f"preempt answered a victim on node {node_name} that is not there: {one.uid!r}")
            pods.append(victim)
        return Victims(tuple(pods), meta.pdb_violations)

    def _question(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> wire.ExtenderArgs:
        if self._config.node_cache_capable:
            return wire.ExtenderArgs(pod=pod.pod, node_names=[node.name for node in nodes])
        return wire.ExtenderArgs(pod=pod.pod, nodes=wire.NodeList(items=self._whole(nodes)))

    def _whole(self, nodes: Sequence[NodeInfo]) -> list[msgspec.Raw]:
        """The JSON of each node; written again only for nodes that changed since they were last asked about."""
        before, asked = self._encoded, {}
        for info in nodes:
            if info.node is not None:
                known = before.get(info.name)
                if known is None or known[0] is not info.node:
                    known = info.node, msgspec.Raw(msgspec.json.encode(info.node))
                asked[info.name] = known
        # Of the others a few cycles' worth is kept: prioritize asks about fewer than the next filter will.
        self._encoded = asked if len(before) > 2 * len(asked) + _KEPT_NODES else before | asked
        return [raw for _, raw in asked.values()]

    def _kept(self, result: wire.ExtenderFilterResult) -> Iterable[str]:
        if self._config.node_cache_capable and result.node_names is not None:
            return result.node_names
        items = result.nodes.items if result.nodes is not None else None
        try:
            return [wire.node_name(raw) for raw in items or ()]
        except wire.WireError as error:
            raise self._error(f"filter answered what is no node: {error}") from error

    def _ask(self, verb: str, question: wire.Message, kind: type[T], *, once: bool = False) -> T:
        try:
            return wire.decode(self._connections.call(verb, wire.encode(question), once=once), kind)
        except (CallError, wire.WireError) as error:
            raise self._error(f"{verb}: {error}") from error

    def _error(self, problem: str) -> ExtenderError:
        return ExtenderError(f"extender {self.name}: {problem}")


def _known(reasons: Mapping[str, str] | None, asked: frozenset[str]) -> dict[str, str]:
    return {name: reason for name, reason in (reasons or {}).items() if name in asked}
