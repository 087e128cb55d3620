"""KubeSchedulerConfiguration: what must fail, what must pass, and what a file means (kube-scheduling.md 2.2, 8.4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler_plugins.config.load import load
from scheduler_plugins.settings import SchedulerSettings
from slacktide import names
from slacktide.errors import SettingsError
from tests.scheduler_plugins.config.files import HEADER, frameworks, problems, read, registry

EXTENDER = "extenders: [{urlPrefix: 'http://127.0.0.1:1/x', "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # kube-scheduling.md 8.4, "Config must fail".
        pytest.param("parallelism: 0", "line 3: parallelism must be more than 0", id="parallelism 0"),
        pytest.param("percentageOfNodesToScore: 101", "must be 0 to 100, not 101", id="percentage 101"),
        pytest.param("profiles: [{schedulerName: a, percentageOfNodesToScore: 101}]", "[0].percent", id="own"),
        pytest.param("profiles: [{schedulerName: ''}]", "profiles[0].schedulerName is missing", id="empty name"),
        pytest.param(
            "profiles: [{schedulerName: a}, {}]", "profiles[1].schedulerName is missing", id="second without a name"
        ),
        pytest.param("profiles: [{schedulerName: a}, {schedulerName: a}]", "stands already in profiles[0]", id="twice"),
        pytest.param(
            "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: Sort}], "
            "disabled: [{name: '*'}]}}}]",
            "must be that of the first profile, PrioritySort",
            id="different queue sort",
        ),
        pytest.param(
            "profiles: [{schedulerName: a, pluginConfig: [{name: Both}, {name: Both, args: {}}]}]",
            "Both stands already in pluginConfig[0]",
            id="repeated pluginConfig",
        ),
        pytest.param(EXTENDER + "prioritizeVerb: p}]", "weight must be more than 0", id="no weight"),
        pytest.param(EXTENDER + "prioritizeVerb: p, weight: -1}]", "weight must be more than 0", id="negative weight"),
        pytest.param(
            EXTENDER + "managedResources: [{name: a.io/x}, {name: a.io/x}]}]",
            "a.io/x is managed already by extenders[0].managedResources[0]",
            id="managed twice in one",
        ),
        pytest.param(
            EXTENDER + "managedResources: [{name: a.io/x}]}, {urlPrefix: 'http://b', "
            "managedResources: [{name: a.io/x}]}]",
            "extenders[1].managedResources[0].name is wrong: a.io/x is managed already by extenders[0]",
            id="managed by two",
        ),
        pytest.param(
            EXTENDER + "managedResources: [{name: kubernetes.io/foo}]}]", "no extended resource", id="kubernetes.io/foo"
        ),
        pytest.param(
            f"{EXTENDER}managedResources: [{{name: {names.BATCH_CPU}}}]}}]",
            "no extended resource",
            id="batch resource [T] of 2.3",
        ),
        pytest.param(
            EXTENDER + "bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}]",
            "extenders[1].bindVerb stands already in extenders[0]",
            id="two binders",
        ),
        # The rest of validation.go and of the file's form.
        pytest.param("podInitialBackoffSeconds: 0", "must be more than 0", id="no first wait"),
        pytest.param("podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 3", "must not be longer", id="waits reversed"),
        pytest.param("podInitialBackoffSeconds: 20", "line 3: podInitialBackoffSeconds", id="longer than the default"),
        pytest.param("leaderElection: {leaseDuration: 5s}", "must be longer than renewDeadline", id="short lease"),
        pytest.param("leaderElection: {renewDeadline: 2400ms}", "1.2 times retryPeriod", id="short renewal"),
        pytest.param("leaderElection: {retryPeriod: 0s}", "must be more than 0", id="no retry"),
        pytest.param("leaderElection: {leaseDuration: '15'}", "is a duration, and '15' is none", id="no unit"),
        pytest.param("leaderElection: {leaseDuration: 15}", "expected `str`", id="a number is no duration"),
        pytest.param("leaderElection: {resourceLock: endpoints}", "must be leases", id="old lock"),
        pytest.param("leaderElection: {resourceName: ''}", "must not be empty", id="empty lease name"),
        pytest.param("leaderElection: {resourceName: kube-scheduler}", "lease of the stock scheduler", id="its lease"),
        pytest.param("extenders: [{filterVerb: f}]", "extenders[0].urlPrefix is missing", id="no address"),
        pytest.param("extenders: [{urlPrefix: 'ftp://a'}]", "urlPrefix is no address: 'ftp://a'", id="other scheme"),
        pytest.param("extenders: [{urlPrefix: 'http://a:99999'}]", "urlPrefix is no address", id="other port"),
        pytest.param("extenders: [{urlPrefix: 'http://[::1'}]", "urlPrefix is no address", id="half an address"),
        pytest.param(EXTENDER + "httpTimeout: 1y}]", "is a duration, and '1y' is none", id="bad timeout"),
        pytest.param(EXTENDER + "httpTimeout: -1s}]", "must not be negative", id="negative timeout"),
        pytest.param(EXTENDER + "tlsConfig: {insecure: true, caFile: /x}}]", "verified or it is not", id="both"),
        pytest.param(EXTENDER + "tlsConfig: {certFile: /x}}]", "both be given, or neither", id="half a pair"),
        pytest.param(EXTENDER + "tlsConfig: {caData: '?'}}]", "tlsConfig.caData is wrong", id="no base64"),
        pytest.param(
            "extenders: [{urlPrefix: 'https://a', tlsConfig: {caFile: /nonexistent}}]", "cannot be used", id="no CA"
        ),
        pytest.param(EXTENDER + "managedResources: [{name: gpu}]}]", "no extended resource", id="no slash"),
        pytest.param(EXTENDER + "managedResources: [{name: requests.a/b}]}]", "no extended resource", id="a quota"),
        pytest.param(EXTENDER + "managedResources: [{name: A_B/c}]}]", "no name of a resource", id="bad prefix"),
        pytest.param(EXTENDER + "managedResources: [{}]}]", "managedResources[0].name is missing", id="no name"),
        pytest.param("parallelism: many", "expected `int`, got `str`", id="wrong type"),
        pytest.param("profiles: {}", "profiles must be a list, not a mapping", id="a mapping for a list"),
        pytest.param("extenders: [7]", "extenders[0] must be a mapping, not 7", id="a number for a mapping"),
        pytest.param("profiles:\n- plugins: {fliter: {}}",
                     "line 4: profiles[0].plugins.fliter is no known field; nearest known: filter", id="unknown point"),
        pytest.param("leaderElect: true", "nearest known: leaderElection", id="unknown field"),
        pytest.param("parallelism: 1\nparallelism: 2", "stands here again, first in line 3", id="key twice"),
        pytest.param("profiles:\n- schedulerName: a\n  schedulerName: b", "again, first in line 4", id="deep"),
    ],
)  # fmt: skip
def test_what_must_fail_does_and_says_where(tmp_path: Path, text: str, words: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1, found
    assert words in found[0]
    assert found[0].startswith(f"file {tmp_path}/scheduler.yaml line ")


@pytest.mark.parametrize(
    "text",
    [
        # kube-scheduling.md 8.4, "Must pass".
        EXTENDER + "filterVerb: f}]",
        EXTENDER + "preemptVerb: p}]",
        "",
        "profiles:\nextenders: ~\n",
        "profiles: [{schedulerName: a, percentageOfNodesToScore: 0}, {schedulerName: b}]",
        "percentageOfNodesToScore: 100",
        "podInitialBackoffSeconds: 3\npodMaxBackoffSeconds: 3",
        EXTENDER + "httpTimeout: 0s, managedResources: [{name: example.com/device}]}]",
        "leaderElection: {leaderElect: false, resourceName: kube-scheduler}",
        "profiles: [{schedulerName: default-scheduler}]\nleaderElection: {resourceName: kube-scheduler}",
        "profiles: [{schedulerName: a, plugins: {multiPoint: {disabled: [{name: EBSLimits}, {name: VolumeZone}]}}}]",
    ],
)
def test_what_must_pass_does(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == ()


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
        parallelism: 0
        profiles:
        - schedulerName: a
          plugins:
            filter: {enabled: [{name: Bth}]}
            score: {disabled: [{name: Scor}]}
          pluginConfig:
          - name: Both
            args: {loadWeigt: 1, mode: 7, ignoredResources: [1]}
          - name: Picky
            args: {mode: b}
        extenders:
        - urlPrefix: http://a
          managedResources: [{name: a}]
        """
    found = problems(tmp_path, text.replace("Bth", "Both}, {name: Bth}, {name: Picky"))
    assert [line.split(" line ")[1].split(" ")[0] for line in found] == [
        "3:",
        "7:",
        "8:",
        "11:",
        "11:",
        "11:",
        "13:",
        "16:",
    ]
    together = "\n".join(found)
    for words in (
        "there is no scheduler plugin 'Bth', did you mean Both?",
        "there is no scheduler plugin 'Scor', did you mean Score?",
        "profiles[0].pluginConfig[0].args.loadWeigt is no known field; nearest known: loadWeight",
        "args.mode is wrong: expected `str`, got `int` (it is 7)",
        "args.ignoredResources[0] is wrong",
        "mode is 'b'; it must be a",
    ):
        assert words in together


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("kind: Pod\n", "kind must be KubeSchedulerConfiguration, not 'Pod'"),
        ("", "kind must be KubeSchedulerConfiguration, not None"),
        (HEADER.replace("/v1", "/v1beta3"), "no longer read by anybody"),
        (HEADER.replace("kubescheduler.config.k8s.io/v1", "v1"), "must be kubescheduler.config.k8s.io/v1, not 'v1'"),
        ("- a\n", "holds a list"),
        ("a: [\n", "is not YAML"),
        ("a: &x [*x]\n", "not YAML that can be used"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
    ],
)
def test_another_file_is_told_by_its_first_lines(tmp_path: Path, header: str, words: str) -> None:
    found = problems(tmp_path, "", header=header)
    assert len(found) == 1
    assert words in found[0]


def test_aliases_that_multiply_end_with_a_sentence(tmp_path: Path) -> None:
    levels = "".join(f"  - &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 9))
    found = problems(tmp_path, "", header=f"a:\n  - &l0 [x, x, x, x, x, x, x, x, x]\n{levels}")
    assert "do its aliases multiply" in found[0]


def test_a_missing_file_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file or directory; check --configuration"):
        load(SchedulerSettings(configuration=str(tmp_path / "none")), registry())


def test_json_is_read_with_tabs_and_a_name_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    data = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "from-json"}],
    }
    text = json.dumps(data, indent="\t")
    assert [p.name for p in read(tmp_path, text, header="").profiles] == ["from-json"]
    found = problems(tmp_path, text.replace('"profiles"', '"kind": "x",\n\t"profiles"'), header="")
    assert "kind stands twice" in found[0]
    assert "profiles[0].schedulerNam is no known field" in problems(tmp_path, text.replace("Name", "Nam"), header="")[0]


def test_without_a_file_there_is_one_profile_and_everything_comes_from_the_settings() -> None:
    settings = SchedulerSettings(scheduler_name="mine", initial_backoff_seconds=2.0, maximum_backoff_seconds=7.0)
    config = load(settings, registry())
    assert list(frameworks(config)) == ["mine"]
    assert (config.initial_backoff_seconds, config.maximum_backoff_seconds) == (2.0, 7.0)
    election = config.election
    assert (election.enabled, election.name, election.namespace) == (True, "mine", "kube-system")
    assert (election.lease_seconds, election.renew_seconds, election.retry_seconds) == (15.0, 10.0, 2.0)
    assert (config.extenders, config.kubeconfig, config.notes) == ((), "", ())


def test_what_a_file_states_goes_before_the_settings(tmp_path: Path) -> None:
    text = """\
        podInitialBackoffSeconds: 3
        clientConnection: {kubeconfig: /etc/kube.conf}
        leaderElection:
          leaderElect: false
          leaseDuration: 1m30s
          renewDeadline: 1m
          retryPeriod: 1500ms
          resourceName: mine
          resourceNamespace: there
        """
    config = read(tmp_path, text, initial_backoff_seconds=2.0, maximum_backoff_seconds=7.0)
    assert (config.initial_backoff_seconds, config.maximum_backoff_seconds) == (3.0, 7.0)
    election = config.election
    assert (election.enabled, election.name, election.namespace) == (False, "mine", "there")
    assert (election.lease_seconds, election.renew_seconds, election.retry_seconds) == (90.0, 60.0, 1.5)
    assert config.kubeconfig == "/etc/kube.conf"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parallelism: 4", "parallelism has no effect"),
        ("percentageOfNodesToScore: 40", "percentageOfNodesToScore has no effect"),
        ("profiles: [{schedulerName: a, percentageOfNodesToScore: 40}]", "percentageOfNodesToScore has no effect"),
        ("delayCacheUntilActive: true", "delayCacheUntilActive has no effect"),
        ("clientConnection: {qps: 5}", "clientConnection.qps and burst have no effect"),
        ("profiles: [{}]", "places the pods of slacktide-scheduler"),
        ("profiles: [{schedulerName: default-scheduler}]", "the stock scheduler must not run beside"),
        (EXTENDER + "}]", "extenders[0] has no verb"),
        (EXTENDER + "filterVerb: f}]", "whole nodes are sent"),
        (EXTENDER + "filterVerb: f, nodeCacheCapable: true, enableHTTPS: true}]", "nothing is encrypted"),
        ("extenders: [{urlPrefix: 'https://a', bindVerb: b, enableHTTPS: true}]", "is not verified"),
        (
            "profiles: [{schedulerName: a, pluginConfig: [{name: Both, args: {}}]}]",
            "profiles[0].pluginConfig[0].args has no effect: plugin Both is not enabled",
        ),
        (
            "profiles: [{schedulerName: a, pluginConfig: [{name: DynamicResources, args: {x: 1}}]}]",
            "plugin DynamicResources is not enabled",
        ),
        (
            "profiles: [{schedulerName: a, plugins: {multiPoint: {enabled: [{name: NodeName, weight: 3}]}}}]",
            "profiles[0].plugins.multiPoint.enabled[0].weight has no effect",
        ),
    ],
)
def test_what_has_no_effect_is_noted(tmp_path: Path, text: str, words: str) -> None:
    notes = read(tmp_path, text).notes
    assert len(notes) == 1, notes
    assert words in notes[0]


def test_ignorable_extenders_come_last(tmp_path: Path) -> None:
    text = "extenders: [{urlPrefix: 'http://a', ignorable: true}, {urlPrefix: 'http://b'}]"
    assert [one.url_prefix for one in read(tmp_path, text).extenders] == ["http://b", "http://a"]


@pytest.mark.parametrize("stated", ["", "pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [a.io/z]}}]"])
def test_what_an_extender_has_ignored_is_ignored_by_fit_in_every_profile(tmp_path: Path, stated: str) -> None:
    # kube-scheduling.md 2.2 and section 7 row 14: the extenders' list overwrites an explicit one.
    text = f"""\
        profiles: [{{schedulerName: a, {stated}}}, {{schedulerName: b}}]
        extenders:
        - urlPrefix: http://a
          managedResources: [{{name: a.io/x, ignoredByScheduler: true}}, {{name: a.io/y}}]
        """
    config = read(tmp_path, text)
    assert [dict(p.args["NodeResourcesFit"].args) for p in config.profiles] == [{"ignoredResources": ["a.io/x"]}] * 2
    assert any("is replaced by" in note for note in config.notes) is bool(stated)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"kind": "OtherArgs"}, "args.kind must be BothArgs, not 'OtherArgs'"),
        ({"apiVersion": "v1"}, "args.apiVersion must be kubescheduler.config.k8s.io/v1"),
        ({"loadWeight": 3}, "loadWeight must be 0 to 1"),
        ([], "args must be a mapping, not a list"),
    ],
)
def test_arguments_are_checked_with_their_header(tmp_path: Path, args: Any, words: str) -> None:
    stated = json.dumps({"name": "Both", "args": args})
    enabled = "plugins: {multiPoint: {enabled: [{name: Both}]}}"
    found = problems(tmp_path, f"profiles: [{{schedulerName: a, {enabled}, pluginConfig: [{stated}]}}]")
    assert len(found) == 1
    assert words in found[0]


def test_arguments_reach_the_plugin_without_their_header(tmp_path: Path) -> None:
    text = """\
        profiles:
        - schedulerName: a
          plugins: {multiPoint: {enabled: [{name: Both}]}}
          pluginConfig:
          - name: Both
            args:
              apiVersion: kubescheduler.config.k8s.io/v1
              kind: BothArgs
              loadWeight: 0.7
              mode: ~
        """
    plugin: Any = next(p for p in frameworks(read(tmp_path, text))["a"].plugins if p.name == "Both")
    assert (plugin.args.load_weight, plugin.args.mode) == (0.7, "")


def test_a_preemption_percentage_above_100_fails(tmp_path: Path) -> None:
    # kube-scheduling.md 8.4; the rule is the plugin's own.
    args = "{name: DefaultPreemption, args: {minCandidateNodesPercentage: 101}}"
    found = problems(tmp_path, f"profiles: [{{schedulerName: a, pluginConfig: [{args}]}}]")
    assert len(found) == 1
    assert "101" in found[0]
