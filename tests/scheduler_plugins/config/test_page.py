"""docs/scheduler-configuration.md: its files are accepted, its sentences are said, its table is the default profile."""

from __future__ import annotations

import re
from pathlib import Path

from scheduler_plugins.config.defaults import default_plugins
from scheduler_plugins.config.load import load
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from tests.scheduler_plugins.config.files import frameworks, problems

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "scheduler-configuration.md").read_text()


def test_the_example_is_accepted_without_a_note_and_means_what_it_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(apiVersion.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "scheduler.yaml"
    path.write_text(example)
    plugins = default_registry()
    config = load(SchedulerSettings(configuration=str(path)), plugins)
    assert config.notes == ()
    found = frameworks(config, plugins)
    assert list(found) == ["my-scheduler", "my-other-scheduler"]
    weights = found["my-scheduler"]._weights
    assert (weights["ActualLoadScore"], weights["NodeResourcesFit"]) == (30, 4)
    assert "ImageLocality" not in weights
    assert [one.ignorable for one in config.extenders] == [True]


def test_the_table_is_the_default_profile() -> None:
    section = PAGE.partition("### The default profile")[2].partition("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d*) ?\|(?: \| `(\w+)` \| (\d*) ?\|)?", section, re.MULTILINE)
    table = [(name, weight) for name, weight, *_ in rows] + [(name, weight) for *_, name, weight in rows if name]
    names = [name for name, _ in table]
    wanted = default_plugins(names)
    assert len(wanted) == len(names)
    assert sorted(table) == sorted((ref.name, str(ref.weight or "")) for ref in wanted)
    assert {ref.name for ref in default_plugins(default_registry().names())} <= {*names}


def test_the_problems_that_it_quotes_are_told_like_that(tmp_path: Path) -> None:
    text = """\
        profiles:
        - schedulerName: a
          plugins: {multiPoint: {enabled: [{name: NodeAfinity}, {name: DynamicResources}]}}
          pluginConfig: [{name: InterPodAffinity, args: {hardPodAfinityWeight: 1}}]
        extenders: [{urlPrefix: http://127.0.0.1:1, prioritizeVerb: p}]
        """
    told = [one.partition(": ")[2].partition("Known")[0] for one in problems(tmp_path, text)]
    quoted = re.findall(r"(?:line \d+: |\.\.\. )(.*)$", PAGE, re.MULTILINE)
    quoted = [line.partition("Known")[0].removeprefix("name ") for line in quoted if "wrong" in line or "is" in line]
    for sentence in ("did you mean NodeAffinity?", "nearest known: hardPodAffinityWeight", "with our extender. Remove"):
        assert any(sentence in one for one in told)
        assert any(sentence in one for one in quoted)
    assert len(told) == 4
