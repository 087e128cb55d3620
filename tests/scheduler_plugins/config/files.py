"""Configuration files for tests, and what becomes of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scheduler_plugins.config.load import load
from scheduler_plugins.config.profiles import build
from scheduler_plugins.config.types import SchedulerConfig
from scheduler_plugins.framework.interfaces import Handle, NodeFilterPlugin, NodeScorePlugin, Plugin, QueueSortPlugin
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.status import SUCCESS
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from slacktide.errors import SettingsError
from tests.scheduler_plugins.build import Silent, handle

HEADER = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


class Args(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Arguments of a plugin for tests."""

    load_weight: float = 0.5
    ignored_resources: list[str] = []
    mode: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.load_weight <= 1:
            raise ValueError("loadWeight must be 0 to 1")


class _Both(NodeFilterPlugin, NodeScorePlugin):
    def __init__(self, args: Args) -> None:
        self.args = args

    def filter(self, state: Any, pod: Any, node: Any) -> Any:
        return SUCCESS

    def score(self, state: Any, pod: Any, node: Any) -> float:
        return 1


class _Filter(NodeFilterPlugin):
    def filter(self, state: Any, pod: Any, node: Any) -> Any:
        return SUCCESS


class _Score(NodeScorePlugin):
    def score(self, state: Any, pod: Any, node: Any) -> float:
        return 1


class _Sort(QueueSortPlugin):
    def sort_key(self, queued: Any) -> tuple[Any, ...]:
        return ()


def _both(name: str) -> Any:
    return type(name, (_Both,), {"name": name})


def _picky(args: Args, host: Handle) -> Plugin:
    if args.mode not in {"", "a"}:
        raise SettingsError([f"mode is {args.mode!r}; it must be a"])
    return _both("Picky")(args)


def registry(*more: str) -> Registry:
    """The plugins of this package, and: Both, Other (filter and score), Score, Filter, Sort, Picky."""
    made = default_registry()
    for name in ("Both", "Other", *more):
        made.register(name, lambda args, host, name=name: _both(name)(args), Args)
    for name, base in (("Filter", _Filter), ("Score", _Score), ("Sort", _Sort)):
        made.register(name, lambda args, host, name=name, base=base: type(name, (base,), {"name": name})(), NoArgs)
    made.register("Picky", _picky, Args)
    return made


def read(
    folder: Path, text: str, plugins: Registry | None = None, header: str = HEADER, **settings: Any
) -> SchedulerConfig:
    """The configuration in `text`, which follows the header."""
    path = folder / "scheduler.yaml"
    path.write_text(header + textwrap.dedent(text))
    return load(SchedulerSettings(configuration=str(path), **settings), plugins or registry())


def frameworks(config: SchedulerConfig, plugins: Registry | None = None) -> dict[str, Framework]:
    """Its profiles."""
    return build(config, plugins or registry(), lambda name: handle(), Silent())


def problems(folder: Path, text: str, plugins: Registry | None = None, header: str = HEADER) -> Sequence[str]:
    """What is wrong with a file; empty when it is accepted."""
    try:
        read(folder, text, plugins, header)
    except SettingsError as error:
        return error.problems
    return ()
