"""Which plugins a profile runs, where, in what order and with what weight: the merge rules of the stock scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.config.defaults import MISSING_STOCK, default_plugins
from scheduler_plugins.config.durations import seconds_of
from scheduler_plugins.config.load import load
from scheduler_plugins.config.merge import expanded, merged
from scheduler_plugins.config.types import POINTS, ChosenProfile, PluginRef, Plugins, PluginSet
from scheduler_plugins.framework.points import POINTS as TYPES
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from tests.scheduler_plugins.config.files import frameworks, problems, read, registry


def refs(*names: str) -> list[PluginRef]:
    return [PluginRef(name=name) for name in names]


def profile(folder: Path, plugins: str) -> Framework:
    return frameworks(read(folder, f"profiles: [{{schedulerName: a, plugins: {plugins}}}]"))["a"]


def at(framework: Framework, point: str) -> list[str]:
    """Names of the plugins at a point, as the framework has them."""
    plugins: Any = {
        "filter": framework._filter,
        "score": framework._score,
        "preFilter": framework._pre_filter,
        "bind": framework._bind,
    }[point]
    return [plugin.name for plugin in plugins]


def test_the_points_are_those_of_the_framework() -> None:
    assert tuple(TYPES) == POINTS


def test_the_default_profile_has_the_stock_order_and_weights() -> None:
    # kube-scheduling.md section 3, head.
    stock = [
        "SchedulingGates", "PrioritySort", "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity",
        "NodePorts", "NodeResourcesFit", "VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone",
        "PodTopologySpread", "InterPodAffinity", "DefaultPreemption", "NodeResourcesBalancedAllocation",
        "ImageLocality", "DefaultBinder",
    ]  # fmt: skip
    weights = {
        "TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 1, "PodTopologySpread": 2, "InterPodAffinity": 2,
        "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1,
    }  # fmt: skip
    found = default_plugins([*stock, "BatchForecast"])
    assert [ref.name for ref in found if ref.name in stock] == stock
    assert {ref.name: ref.weight for ref in found if ref.name in stock and ref.weight} == weights


def test_the_default_profile_is_complete_and_has_only_what_is_registered(tmp_path: Path) -> None:
    plugins = default_registry()
    framework = frameworks(read(tmp_path, "", plugins), plugins)["slacktide-scheduler"]
    names = [plugin.name for plugin in framework.plugins]
    assert names == [ref.name for ref in default_plugins(plugins.names())]
    assert {"PrioritySort", "DefaultBinder", "BatchForecast", "NodeResourcesFit", "UnsupportedPods"} <= {*names}


def test_every_plugin_of_this_package_that_the_default_profile_scores_with_has_a_weight() -> None:
    plugins = default_registry()
    listed = {ref.name: ref.weight for ref in default_plugins(plugins.names())}
    framework = frameworks(load(SchedulerSettings(), plugins), plugins)["slacktide-scheduler"]
    unweighted = [plugin.name for plugin in framework._score if not listed[plugin.name]]
    assert unweighted == []


@pytest.mark.parametrize(
    ("custom", "wanted"),
    [
        (PluginSet(), ["a:1", "b:2", "c:0"]),
        (PluginSet(enabled=refs("d")), ["a:1", "b:2", "c:0", "d:0"]),
        (PluginSet(disabled=refs("b")), ["a:1", "c:0"]),
        (PluginSet(disabled=refs("*")), []),
        (PluginSet(enabled=refs("d", "a"), disabled=refs("*")), ["d:0", "a:0"]),
        # Named again: keeps its place, takes the file's weight.
        (PluginSet(enabled=[PluginRef(name="b", weight=9)]), ["a:1", "b:9", "c:0"]),
        (PluginSet(enabled=refs("b", "d")), ["a:1", "b:0", "c:0", "d:0"]),
        # Disabled and enabled: goes to the end, in the file's order.
        (PluginSet(enabled=[PluginRef(name="a", weight=5)], disabled=refs("a")), ["b:2", "c:0", "a:5"]),
        (PluginSet(disabled=refs("unknown")), ["a:1", "b:2", "c:0"]),
    ],
)
def test_a_file_changes_the_default_list(custom: PluginSet, wanted: list[str]) -> None:
    default = [PluginRef(name="a", weight=1), PluginRef(name="b", weight=2), PluginRef(name="c")]
    assert [f"{ref.name}:{ref.weight}" for ref in merged(default, custom)] == wanted


@pytest.mark.parametrize(
    ("multi", "score", "wanted"),
    [
        # framework.go expandMultiPointPlugins: listed and multiPoint, then multiPoint, then listed only.
        (["a", "b", "c"], PluginSet(), ["a", "b", "c"]),
        (["a", "b", "c"], PluginSet(enabled=refs("d", "b")), ["b", "a", "c", "d"]),
        (["a", "b", "c"], PluginSet(enabled=refs("c", "a")), ["c", "a", "b"]),
        (["a", "b", "c"], PluginSet(disabled=refs("b")), ["a", "c"]),
        (["a", "b", "c"], PluginSet(disabled=refs("*")), []),
        (["a", "b", "c"], PluginSet(enabled=refs("d", "b"), disabled=refs("*")), ["d", "b"]),
        (["a", "b", "c"], PluginSet(enabled=refs("b"), disabled=refs("b")), ["a", "c", "b"]),
        (["a", "no-score", "c"], PluginSet(), ["a", "c"]),
    ],
)
def test_one_point_changes_what_multi_point_brings(multi: list[str], score: PluginSet, wanted: list[str]) -> None:
    chosen = ChosenProfile("p", tuple(refs(*multi)), Plugins(score=score), {}, ("profiles", 0))
    points = expanded(chosen, lambda plugin, point: point == "score" and plugin != "no-score")
    assert list(points["score"]) == wanted
    assert all(not plugins for point, plugins in points.items() if point != "score")


_SETS = st.builds(
    lambda on, off: PluginSet(enabled=refs(*on), disabled=refs(*off)),
    st.lists(st.sampled_from("abcdef"), unique=True, max_size=4),
    st.lists(st.sampled_from("abcdef*"), unique=True, max_size=3),
)


@given(default=st.lists(st.sampled_from("abcdef"), unique=True), multi=_SETS, score=_SETS)
def test_every_plugin_runs_once_and_enabled_wins_over_disabled(
    default: list[str], multi: PluginSet, score: PluginSet
) -> None:
    listed = merged(refs(*default), multi)
    chosen = ChosenProfile("p", listed, Plugins(score=score), {}, ())
    names = expanded(chosen, lambda plugin, point: True)["score"]
    assert len(set(names)) == len(names)
    stated = {ref.name for ref in score.enabled}
    off = {ref.name for ref in score.disabled}
    assert stated <= {*names}
    assert not ({*names} - stated) & off
    assert stated == {*names} or "*" not in off
    assert {ref.name for ref in multi.enabled} <= {ref.name for ref in listed}


def test_two_profiles_have_their_own_plugins_and_share_the_order_of_the_queue(tmp_path: Path) -> None:
    text = """\
        profiles:
        - schedulerName: my-scheduler
          plugins:
            multiPoint: {enabled: [{name: Both, weight: 30}]}
            filter: {disabled: [{name: Both}]}
        - schedulerName: plain
        """
    found = frameworks(read(tmp_path, text))
    assert list(found) == ["my-scheduler", "plain"]
    assert "Both" in at(found["my-scheduler"], "score")
    assert "Both" not in at(found["my-scheduler"], "filter")
    assert found["my-scheduler"]._weights["Both"] == 30
    assert "Both" not in [plugin.name for plugin in found["plain"].plugins]


def test_a_weight_at_score_goes_before_that_of_multi_point_and_none_is_one(tmp_path: Path) -> None:
    framework = profile(
        tmp_path,
        "{multiPoint: {enabled: [{name: Both, weight: 4}, {name: Other}, {name: TaintToleration}]}, "
        "score: {enabled: [{name: Both, weight: 6}, {name: Score}]}}",
    )
    weights = framework._weights
    assert [weights[name] for name in ("Both", "Other", "Score")] == [6, 1, 1]
    # A default plugin that is named again without a weight weighs 1, as in the stock scheduler.
    assert weights["TaintToleration"] == 1
    assert at(framework, "score")[0] == "Both"


def test_a_plugin_of_one_point_runs_nowhere_else(tmp_path: Path) -> None:
    framework = profile(tmp_path, "{score: {enabled: [{name: Both, weight: 2}]}}")
    assert "Both" in at(framework, "score")
    assert "Both" not in at(framework, "filter")


def test_disabling_all_leaves_what_is_listed(tmp_path: Path) -> None:
    framework = profile(
        tmp_path,
        "{multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: Both}]}}",
    )
    assert [plugin.name for plugin in framework.plugins] == ["PrioritySort", "DefaultBinder", "Both"]


@pytest.mark.parametrize(
    ("plugins", "words"),
    [
        ("{score: {enabled: [{name: NodeName}]}}", "NodeName, which takes no part in score, only in preFilter, filter"),
        ("{queueSort: {disabled: [{name: '*'}]}}", "must have exactly one plugin, such as PrioritySort; it has none"),
        ("{queueSort: {enabled: [{name: Sort}]}}", "it has PrioritySort, Sort"),
        ("{bind: {disabled: [{name: DefaultBinder}]}}", "plugins.bind has no plugin"),
        ("{multiPoint: {enabled: [{name: Both}, {name: Both}]}}", "Both is enabled twice here"),
        ("{filter: {enabled: [{name: Both}, {name: Both}]}}", "Both is enabled twice here"),
        ("{multiPoint: {enabled: [{name: Both, weight: -1}]}}", "weight must be 0 to"),
        ("{multiPoint: {enabled: [{name: Both, weight: 2147483648}]}}", "weight must be 0 to"),
        ("{multiPoint: {enabled: [{name: ''}]}}", "enabled[0].name is missing"),
        ("{multiPoint: {enabled: [{weight: 1}]}}", "enabled[0].name is missing"),
        ("{multiPoint: {enabled: [{name: NodeAfinity}]}}", "did you mean NodeAffinity?"),
        ("{multiPoint: {disabled: [{name: NodeAfinity}]}}", "did you mean NodeAffinity?"),
        ("{multiPoint: {enabled: [{name: DynamicResources}]}}", "DynamicResources of the stock scheduler is not here"),
    ],
)  # fmt: skip
def test_a_profile_that_cannot_be_is_refused(tmp_path: Path, plugins: str, words: str) -> None:
    found = problems(tmp_path, f"profiles: [{{schedulerName: a, plugins: {plugins}}}]")
    assert len(found) == 1, found
    assert words in found[0]


def test_a_stock_plugin_that_is_missing_is_refused_with_what_to_do(tmp_path: Path) -> None:
    there = {*registry().names()}
    for name in sorted({*MISSING_STOCK} - there):
        found = problems(tmp_path, f"profiles: [{{plugins: {{filter: {{enabled: [{{name: {name}}}]}}}}}}]")
        assert len(found) == 1
        assert f"plugin {name} of the stock scheduler is not here" in found[0]
        assert found[0].endswith("Remove it from the file")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5), ("1m30s", 90), ("1.5h", 5400), ("250ms", 0.25), ("0", 0), ("-1s", -1), ("+2s", 2), (".5s", 0.5),
        ("1h2m3s4ms5us6ns", 3723.004005006), ("1µs", 1e-6), ("1μs", 1e-6),
    ],
)  # fmt: skip
def test_a_duration_of_go_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 s", "1d", "-", "1.2.3s", "5sx", "1e3s", "9" * 400 + "h", "300000000h"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds_of(text)
