"""Extenders and preemption: those with a preempt verb may narrow the candidates, and name other victims on them.

One without the verb is not asked, so that its filter may refuse the node once more when the pod comes to it. What an
extender names is held to the same rule as what is found here: nobody goes who does not give way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_plugins.framework.extending import Extender, ExtenderError, Victims
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.status import PluginFailure, failed
from scheduler_plugins.framework.yielding import Claim, MayBeRemoved
from scheduler_plugins.plugins.preemption_candidates import Candidate, by_importance
from slacktide.observe import get_logger

_log = get_logger("scheduler.preemption")


def ask_extenders(extenders: Sequence[Extender], pod: PodInfo, found: Sequence[Candidate]) -> Sequence[Candidate]:
    """Candidates that every interested extender leaves, in the order found.

    Raises PluginFailure where one that is not ignorable gives no usable answer.
    """
    candidates: Mapping[str, Victims] = {one.node: one.victims for one in found}
    for extender in sorted(extenders, key=lambda one: one.ignorable):
        if not candidates or not extender.preempts or not extender.interested(pod):
            continue
        try:
            candidates = _checked(extender.name, pod, candidates, extender.preempt(pod, candidates))
        except Exception as error:  # foreign code behind a wire; the scheduler goes on
            text = str(error) if isinstance(error, ExtenderError) else f"extender {extender.name} failed: {error!r}"
            if not extender.ignorable:
                raise PluginFailure(failed(text, error).by(extender.name)) from error
            _log.warning("ignorable extender left out", extender=extender.name, pod=pod.key, error=text)
    return [Candidate(one.node, candidates[one.node]) for one in found if one.node in candidates]


def _checked(
    name: str, pod: PodInfo, asked: Mapping[str, Victims], answer: Mapping[str, Victims]
) -> Mapping[str, Victims]:
    """`answer` without nodes whose victims may not be removed. Raises ExtenderError for a node not asked about."""
    unknown = sorted(answer.keys() - asked.keys())
    if unknown:
        raise ExtenderError(f"extender {name} answered node {unknown[0]}, which is no candidate")
    may_go = MayBeRemoved(Claim.of(pod))
    kept = {}
    for node, victims in answer.items():
        wrong = [victim.key for victim in victims.pods if not may_go.matches(victim)]
        if wrong:
            _log.warning("extender named a pod that must stay", extender=name, node=node, victim=wrong[0], pod=pod.key)
            continue
        kept[node] = Victims(tuple(by_importance(victims.pods)), victims.pdb_violations)
    return kept
