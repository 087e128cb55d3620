"""PromQL text: the one place that knows names of metrics and labels. Pure.

How nothing is counted twice. cAdvisor has a series for each cgroup, so a container is also in its pod, in its slice
and in `/`; the pause container of a pod is there too. Use of pods is the sum over containers (label `container` not
empty, not `POD`), or, where a cluster has none of these, over the cgroups of pods (`container` and `image` empty). Two
scrapers of one node, or a pair of Prometheus behind one Thanos, give the same cgroup twice: of series that differ in
labels of the scraper only, the higher one counts (`max by` node, namespace, pod, container, id, cpu). The `id` stays
in: a container that restarted within a window has two cgroups, and both were use.

Use of a whole node is the root cgroup, or what node-exporter counts outside idle, iowait, steal and the guest modes
(guests are in `user` already). Memory is the working set, as the kubelet counts it.

Rates are over windows of `window` seconds that end at the time asked. Prometheus handles resets of counters; a series
that ended is silent after its last window, since everything here is read over a range and never looked up backwards.

Source: cAdvisor's metrics page, kube-state-metrics' documentation (pod, node metrics; names of labels are written in
snake case there), node-exporter's README.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from predictor.prometheus.errors import PrometheusError

CPU: Final = "container_cpu_usage_seconds_total"
MEMORY: Final = "container_memory_working_set_bytes"
NODE_CPU: Final = "node_cpu_seconds_total"
NODE_MEMORY_TOTAL: Final = "node_memory_MemTotal_bytes"
NODE_MEMORY_FREE: Final = "node_memory_MemAvailable_bytes"
MACHINE_CPU: Final = "machine_cpu_cores"
MACHINE_MEMORY: Final = "machine_memory_bytes"
NODE_CAPACITY: Final = "kube_node_status_capacity"
NODE_INFO: Final = "kube_node_info"
NODE_NAMES: Final = "node_uname_info"
POD_INFO: Final = "kube_pod_info"
POD_LABELS: Final = "kube_pod_labels"
POD_OWNER: Final = "kube_pod_owner"
POD_PHASE: Final = "kube_pod_status_phase"
REQUESTS: Final = "kube_pod_container_resource_requests"

TIER_LABEL: Final = "label_slacktide_io_tier"
QOS_LABELS: Final = ("label_koordinator_sh_qos_class", "label_koordinator_sh_qosClass")
BATCH: Final = {
    "kubernetes_io_batch_cpu": "kubernetes.io/batch-cpu",
    "kubernetes_io_batch_memory": "kubernetes.io/batch-memory",
}
"""Resources that only best-effort pods ask for, as kube-state-metrics writes them, and as they are called."""

_IDLE_MODES: Final = "idle|iowait|steal|guest|guest_nice"
BY_MATCHER: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(=~|!~|!=|=)([^"]*|"[^"]*")')
BY_POD: Final = ("namespace", "pod")
STATES_NODE: Final = "node"
"""Label of kube-state-metrics that names the node."""
_MATCHER: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(=~|!~|!=|=)([^"]*|"[^"]*")')
_POD: Final = ", ".join(BY_POD)


class Form(enum.StrEnum):
    """Which of cAdvisor's series stand for pods."""

    CONTAINERS = "containers"
    PODS = "pods"
    BOTH = "containers, or the pod where it has none"


class Total(enum.StrEnum):
    """What stands for a whole node."""

    ROOT = "root cgroup"
    EXPORTER = "node-exporter"


class Match(NamedTuple):
    """Further conditions on series: `extra` as PromQL matchers, the node's label one of `values` (None: any).

    exported  kube-state-metrics is scraped without `honor_labels`: what its series are about stands in `exported_pod`
              and so on, and `pod` is the one of kube-state-metrics itself
    """

    extra: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None
    exported: bool = False

    def all(self, label: str) -> tuple[str, ...]:
        """The matchers; `label` names the node."""
        if self.values is None:
            return self.extra
        either = "|".join(re.escape(value) for value in self.values)
        return (*self.extra, f"{label}=~{quoted(either)}")


def quoted(text: str) -> str:
    """`text` as a string of PromQL."""
    return json.dumps(text)


def matcher(text: str) -> str:
    """`text` as a matcher of PromQL; `cluster=prod` may stand for `cluster="prod"`. Raises PrometheusError."""
    found = _MATCHER.fullmatch(text.strip())
    if found is None:
        raise PrometheusError(f'{text!r} is no matcher: write LABEL=VALUE or, as in PromQL, LABEL=~"REGEX"')
    label, operator, value = found.groups()
    inner = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    return f"{label}{operator}{quoted(inner)}"


def select(metric: str, *matchers: str) -> str:
    """A selector."""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def seconds(count: float) -> str:
    """A duration of PromQL."""
    return f"{round(count)}s"


def rate(selector: str, window: float) -> str:
    """Increase a second."""
    return f"rate({selector}[{seconds(window)}])"


def highest(selector: str, window: float) -> str:
    """Highest sample of the window, without one on its first moment: that is of the time before."""
    return f"max_over_time({selector}[{seconds(window - 1)}])"


def lowest(selector: str, window: float) -> str:
    """Lowest sample of the window, likewise."""
    return f"min_over_time({selector}[{seconds(window - 1)}])"


Over = Callable[[str, float], str]


class Cadvisor(NamedTuple):
    """Use of pods and of whole nodes by cAdvisor's series. `label` names the node there; no `form`, no pods."""

    label: str
    form: Form | None
    match: Match = Match()

    def pod_cpu(self, window: float, by: Sequence[str] = (), condition: str = "") -> str:
        """Cores per node and what `by` names."""
        return self._pods(CPU, window, by, condition, rate)

    def pod_memory(self, window: float, by: Sequence[str] = (), condition: str = "", *, least: bool = False) -> str:
        """Working set per node and what `by` names: the sum of the highest (or lowest) of each container."""
        return self._pods(MEMORY, window, by, condition, lowest if least else highest)

    def root_cpu(self, window: float) -> str:
        """Cores of the whole node."""
        series = rate(select(CPU, 'id="/"', *self.match.all(self.label)), window)
        return f"sum by ({self.label}) (max by ({self.label}, cpu) ({series}))"

    def root_memory(self, window: float) -> str:
        """Working set of the whole node."""
        series = highest(select(MEMORY, 'id="/"', *self.match.all(self.label)), window)
        return f"max by ({self.label}) ({series})"

    def machine(self, metric: str, window: float) -> str:
        """What the machine has."""
        return f"max by ({self.label}) ({highest(select(metric, *self.match.all(self.label)), window)})"

    def _pods(self, metric: str, window: float, by: Sequence[str], condition: str, over: Over) -> str:
        assert self.form is not None, "there are no pods to ask for"
        parts = [self._part(metric, window, form, over) for form in _FORMS[self.form]]
        pods = " or ".join(f"sum by ({self.label}, {_POD}) ({part})" for part in parts)
        if condition:
            pods = f"({pods}) and on ({_POD}) ({condition})"
        return f"sum by ({', '.join((self.label, *by))}) ({pods})"

    def _part(self, metric: str, window: float, form: Form, over: Over) -> str:
        series = over(select(metric, *POD_MATCHERS[form], *self.match.all(self.label)), window)
        return f"max by ({self.label}, {_POD}, container, id, cpu) ({series})"


POD_MATCHERS: Final[dict[Form, tuple[str, ...]]] = {
    Form.CONTAINERS: ('container!=""', 'container!="POD"', 'pod!=""'),
    Form.PODS: ('container=""', 'image=""', 'pod!=""'),
}
_FORMS: Final[dict[Form, tuple[Form, ...]]] = {
    Form.CONTAINERS: (Form.CONTAINERS,),
    Form.PODS: (Form.PODS,),
    Form.BOTH: (Form.CONTAINERS, Form.PODS),
}


def exporter_cpu(label: str, match: Match, window: float) -> str:
    """Cores of the whole node by node-exporter."""
    series = rate(select(NODE_CPU, f'mode!~"{_IDLE_MODES}"', *match.all(label)), window)
    return f"sum by ({label}) (max by ({label}, cpu, mode) ({series}))"


def exporter_memory(label: str, match: Match, window: float) -> str:
    """Memory that is not available on the whole node by node-exporter."""
    total = f"max by ({label}) ({highest(select(NODE_MEMORY_TOTAL, *match.all(label)), window)})"
    free = f"min by ({label}) ({lowest(select(NODE_MEMORY_FREE, *match.all(label)), window)})"
    return f"{total} - {free}"


def exporter_cores(label: str, match: Match, window: float) -> str:
    """CPUs of the node by node-exporter."""
    series = f"count_over_time({select(NODE_CPU, quoted_mode('idle'), *match.all(label))}[{seconds(window)}])"
    return f"count by ({label}) (group by ({label}, cpu) ({series}))"


def exporter_total_memory(label: str, match: Match, window: float) -> str:
    """Memory of the node by node-exporter."""
    return f"max by ({label}) ({highest(select(NODE_MEMORY_TOTAL, *match.all(label)), window)})"


def quoted_mode(mode: str) -> str:
    """Matcher of one CPU mode."""
    return f"mode={quoted(mode)}"


def state(metric: str, match: Match, window: float, *matchers: str) -> str:
    """Highest sample of a metric of kube-state-metrics in the window, with the labels of what it is about."""
    # Which of the two labels names the node is not sure then, so series of all nodes are asked for.
    conditions = match.extra if match.exported else match.all(STATES_NODE)
    series = highest(select(metric, *matchers, *conditions), window)
    for name in (STATES_NODE, *BY_POD, "container") if match.exported else ():
        series = f'label_replace({series}, "{name}", "$1", "exported_{name}", "(.+)")'
    return series


def node_capacity(match: Match, resource: str, window: float) -> str:
    """What the kubelet says the node has."""
    series = state(NODE_CAPACITY, match, window, f"resource={quoted(resource)}")
    return f"max by ({STATES_NODE}) ({series})"


def requested(
    match: Match, resource: str, window: float, by: Sequence[str] = (), *, phases: bool, condition: str = ""
) -> str:
    """Requests per node (and what `by` names) of pods that are not over."""
    series = state(REQUESTS, match, window, f"resource={quoted(resource)}")
    pods = f"sum by ({STATES_NODE}, {_POD}) (max by ({STATES_NODE}, {_POD}, container) ({series}))"
    if phases:
        living = state(POD_PHASE, match._replace(values=None), window, 'phase=~"Pending|Running"')
        pods = f"({pods}) and on ({_POD}) (max by ({_POD}) ({living}) > 0)"
    if condition:
        pods = f"({pods}) and on ({_POD}) ({condition})"
    return f"sum by ({', '.join((STATES_NODE, *by))}) ({pods})"


def marks_by_label(match: Match, window: float) -> str:
    """Pods that may be of another tier than LS, with those of their labels that speak for a tier."""
    known = (state(POD_LABELS, match, window, f'{name}!=""') for name in (TIER_LABEL, *QOS_LABELS))
    of_marked = f"({' or '.join(known)}) and on ({_POD}) ({marked(match, window)})"
    return f"group by ({_POD}, {', '.join((TIER_LABEL, *QOS_LABELS))}) ({of_marked})"


def marks_by_request(match: Match, window: float) -> str:
    """Pods that ask for batch resources, with the names of these."""
    return f"group by ({_POD}, resource) ({_batch(match, window)})"


def marked(match: Match, window: float) -> str:
    """Pods that a label or a request may make another tier than LS: a condition for other expressions."""
    either = [state(POD_LABELS, match, window, f'{TIER_LABEL}=~"(?i:be|system)"')]
    either += [state(POD_LABELS, match, window, f'{name}=~"BE|SYSTEM"') for name in QOS_LABELS]
    either.append(_batch(match, window))
    return f"group by ({_POD}) ({' or '.join(either)})"


def _batch(match: Match, window: float) -> str:
    return state(REQUESTS, match, window, f'resource=~"{"|".join(BATCH)}"')
