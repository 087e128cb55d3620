"""A file as kube-scheduler 1.35 writes it (`--write-config-to`): accepted, or refused for plugins that are named."""

from __future__ import annotations

from pathlib import Path

from tests.scheduler_plugins.config.files import frameworks, problems, read, registry

STOCK = """\
clientConnection:
  acceptContentTypes: ""
  burst: 100
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: ""
  qps: 50
delayCacheUntilActive: false
enableContentionProfiling: true
enableProfiling: true
leaderElection:
  leaderElect: true
  leaseDuration: 15s
  renewDeadline: 10s
  resourceLock: leases
  resourceName: kube-scheduler
  resourceNamespace: kube-system
  retryPeriod: 2s
parallelism: 16
percentageOfNodesToScore: 0
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 10
profiles:
- pluginConfig:
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: DefaultPreemptionArgs
      minCandidateNodesAbsolute: 100
      minCandidateNodesPercentage: 10
    name: DefaultPreemption
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      filterTimeout: 10s
      kind: DynamicResourcesArgs
    name: DynamicResources
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      hardPodAffinityWeight: 1
      ignorePreferredTermsOfExistingPods: false
      kind: InterPodAffinityArgs
    name: InterPodAffinity
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeAffinityArgs
    name: NodeAffinity
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesBalancedAllocationArgs
      resources:
      - name: cpu
        weight: 1
      - name: memory
        weight: 1
    name: NodeResourcesBalancedAllocation
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy:
        resources:
        - name: cpu
          weight: 1
        - name: memory
          weight: 1
        type: LeastAllocated
    name: NodeResourcesFit
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      defaultingType: System
      kind: PodTopologySpreadArgs
    name: PodTopologySpread
  - args:
      apiVersion: kubescheduler.config.k8s.io/v1
      bindTimeoutSeconds: 600
      kind: VolumeBindingArgs
    name: VolumeBinding
  plugins:
    bind: {}
    filter: {}
    multiPoint:
      enabled:
      - name: SchedulingGates
        weight: 0
      - name: PrioritySort
        weight: 0
      - name: NodeUnschedulable
        weight: 0
      - name: NodeName
        weight: 0
      - name: TaintToleration
        weight: 3
      - name: NodeAffinity
        weight: 2
      - name: NodePorts
        weight: 0
      - name: NodeResourcesFit
        weight: 1
      - name: VolumeRestrictions
        weight: 0
      - name: NodeVolumeLimits
        weight: 0
      - name: VolumeBinding
        weight: 0
      - name: VolumeZone
        weight: 0
      - name: PodTopologySpread
        weight: 2
      - name: InterPodAffinity
        weight: 2
      - name: DynamicResources
        weight: 2
      - name: DefaultPreemption
        weight: 0
      - name: NodeResourcesBalancedAllocation
        weight: 1
      - name: ImageLocality
        weight: 1
      - name: DefaultBinder
        weight: 0
    permit: {}
    postBind: {}
    postFilter: {}
    preBind: {}
    preEnqueue: {}
    preFilter: {}
    preScore: {}
    queueSort: {}
    reserve: {}
    score: {}
  schedulerName: default-scheduler
"""

_ENABLED = [
    line.split(": ")[1] for line in STOCK.splitlines() if line.startswith("      - name: ") and line[14].isupper()
]


def test_the_stock_file_is_refused_only_for_plugins_that_are_not_here(tmp_path: Path) -> None:
    found = problems(tmp_path, STOCK)
    missing = [name for name in _ENABLED if registry().entry(name) is None]
    assert len(_ENABLED) == 19
    assert missing == ["DynamicResources"]
    assert [name for name in missing if not any(f"plugin {name} of the stock scheduler" in one for one in found)] == []
    assert len(found) == len(missing), found


def test_the_stock_file_without_them_is_accepted_and_means_the_same(tmp_path: Path) -> None:
    there = {*registry().names()}
    text = STOCK
    for name in _ENABLED:
        if name not in there:
            text = text.replace(f"      - name: {name}\n        weight: {2 if name == 'DynamicResources' else 0}\n", "")
            text = text.replace(f"      - name: {name}\n        weight: 1\n", "")
    config = read(tmp_path, text)
    framework = frameworks(config)["default-scheduler"]
    names = [plugin.name for plugin in framework.plugins]
    assert [name for name in names if name in _ENABLED] == [name for name in _ENABLED if name in there]
    assert {name: framework._weights[name] for name in ("TaintToleration", "NodeAffinity")} == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
    }
    assert (config.election.name, config.election.namespace) == ("kube-scheduler", "kube-system")
    assert any("the stock scheduler must not run beside this one" in note for note in config.notes)
