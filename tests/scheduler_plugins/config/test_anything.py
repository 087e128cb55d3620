"""Whatever stands in a file: it is accepted or refused with sentences; a wrong part hides no other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduler_plugins.config.convert import Source
from scheduler_plugins.config.load import configure
from scheduler_plugins.config.types import POINTS
from scheduler_plugins.settings import SchedulerSettings
from slacktide.errors import SettingsError
from slacktide.settings import files
from tests.scheduler_plugins.config.files import registry
from tests.scheduler_plugins.config.test_stock_file import STOCK

PLUGINS = registry()
_JUNK: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=8) | st.just("5s"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_REF = st.fixed_dictionaries(
    {"name": st.sampled_from([*PLUGINS.names(), "*", "DynamicResources", "Typo"]) | _JUNK},
    optional={"weight": st.integers(-1, 3) | _JUNK},
)
_SET = st.fixed_dictionaries(
    {}, optional={"enabled": st.lists(_REF, max_size=4), "disabled": st.lists(_REF, max_size=3)}
)
_PROFILE = st.fixed_dictionaries(
    {},
    optional={
        "schedulerName": st.sampled_from(["a", "b", ""]) | _JUNK,
        "plugins": st.dictionaries(st.sampled_from(["multiPoint", *POINTS]), _SET | _JUNK, max_size=3) | _JUNK,
        "pluginConfig": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(PLUGINS.names())}, optional={"args": _JUNK}) | _JUNK,
            max_size=3,
        ),
    },
)
_EXTENDER = st.dictionaries(
    st.sampled_from(
        [
            "urlPrefix",
            "filterVerb",
            "prioritizeVerb",
            "bindVerb",
            "weight",
            "httpTimeout",
            "tlsConfig",
            "managedResources",
        ]
    ),
    _JUNK | st.sampled_from(["http://a", "https://a:1", "http://[", [{"name": "a.io/b", "ignoredByScheduler": True}]]),
)
_FILE = st.fixed_dictionaries(
    {},
    optional={
        "profiles": st.lists(_PROFILE | _JUNK, max_size=3) | _JUNK,
        "extenders": st.lists(_EXTENDER | _JUNK, max_size=3) | _JUNK,
        "leaderElection": st.dictionaries(
            st.sampled_from(["leaseDuration", "renewDeadline", "retryPeriod", "resourceName", "leaderElect"]), _JUNK
        )
        | _JUNK,
        "parallelism": _JUNK,
        "podInitialBackoffSeconds": _JUNK,
        "podMaxBackoffSeconds": _JUNK,
        "clientConnection": _JUNK,
    },
)


def told(data: dict[str, Any]) -> list[str]:
    """What is wrong with a file of this content."""
    try:
        config = configure(SchedulerSettings(), data, Source("file x"), PLUGINS)
    except SettingsError as error:
        return error.problems
    return [] if config.profiles and config.initial_backoff_seconds > 0 else ["accepted, and not usable"]


@example({"profiles": [{"\n": None}]})
@given(_FILE)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_content_is_accepted_or_refused_in_sentences(data: dict[str, Any]) -> None:
    found = told(data)
    assert [problem for problem in found if not problem.startswith("file x: ") or "\n" in problem] == []
    assert len(set(found)) == len(found)


def _leaves(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(data, dict):
        return [leaf for key, value in data.items() for leaf in _leaves(value, (*path, key))]
    if isinstance(data, list):
        return [leaf for i, value in enumerate(data) for leaf in _leaves(value, (*path, i))]
    return [path]


_STOCK: dict[str, Any] = yaml.safe_load(STOCK)
_PATHS = [path for path in _leaves(_STOCK) if path[-1] not in {"apiVersion", "kind"}]


@given(st.lists(st.sampled_from(_PATHS), min_size=1, max_size=3, unique=True))
@settings(max_examples=30, deadline=None)
def test_each_of_several_wrong_values_is_named(paths: list[tuple[str | int, ...]]) -> None:
    data = yaml.safe_load(STOCK)
    for path in paths:
        holder = data
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = {"wrong": ["value"]}
    found = "\n".join(told(data))
    for path in paths:
        if path[2:3] == ("pluginConfig",):
            name = _STOCK["profiles"][0]["pluginConfig"][path[3]]["name"]
            if PLUGINS.entry(name) is None or (*path[:4], "name") in paths:
                continue  # Nobody knows the arguments of a plugin that is not there, or not named.
        assert Source("file x").place(path) in found, path


@given(st.text(alphabet="ab:-{}[]&*!|>#'\" \n\t,?%@`0", max_size=60))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_document_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    try:
        found, problems = files.document(str(path), "--configuration").data, []
    except SettingsError as error:
        found, problems = {}, error.problems
    assert [problem for problem in problems if not problem.startswith(f"file {path}")] == []
    assert [key for key in found if not isinstance(key, str)] == []
