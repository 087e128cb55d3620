"""Settings from file, environment and flags, with where each value came from; and what a reload may change."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from slacktide import __version__
from slacktide.errors import SettingsError
from slacktide.settings import values
from slacktide.settings.arguments import Arguments, help_text, parse_arguments
from slacktide.settings.schema import Option, Settings, env_prefix, is_group, options, value_text

if TYPE_CHECKING:
    from slacktide.settings import files

S = TypeVar("S", bound=Settings)

_SERVICE_LINK: Final = re.compile(
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
"""What Kubernetes adds to a pod's environment for a Service named like the component; nobody's setting."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings, and where the value of each dotted key came from: `file agent.yaml`, `env X`, `flag --x`, `default`."""

    settings: S
    sources: dict[str, str]
    component: str


@dataclass(frozen=True, slots=True)
class Reload(Generic[S]):
    """Outcome of a reload: the settings now in force, the keys that changed, the keys that wait for a restart."""

    settings: S
    applied: list[str]
    needs_restart: list[str]
    loaded: Loaded[S]
    """What to pass to the next reload."""


def load(
    settings_type: type[S],
    component: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    about: str = "",
) -> Loaded[S]:
    """Settings of `component` from `argv` (without the program's name) over `environ` over the file over defaults.

    None stands for those of this process. `--help`, `--version` and `--print-settings` print to standard output and
    raise SystemExit(0). Raises SettingsError with every problem found.
    """
    known = options(settings_type)
    arguments = parse_arguments(known, sys.argv[1:] if argv is None else argv)
    if arguments.help:
        _leave(help_text(known, component, about))
    if arguments.version:
        _leave(f"slacktide {component} {__version__}\n")
    loaded = _load(settings_type, component, arguments, os.environ if environ is None else environ)
    if arguments.print_settings:
        _leave(rendered(loaded))
    return loaded


def reloaded(
    loaded: Loaded[S], argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> Reload[S]:
    """Read everything again and take over what can be changed while running.

    Raises SettingsError when the new settings cannot be used: `loaded` then stays in force and the caller says so.
    """
    settings_type = type(loaded.settings)
    known = options(settings_type)
    arguments = parse_arguments(known, sys.argv[1:] if argv is None else argv)
    fresh = _load(settings_type, loaded.component, arguments, os.environ if environ is None else environ)
    chosen: dict[tuple[str, ...], Any] = {}
    sources = dict(loaded.sources)
    applied: list[str] = []
    needs_restart: list[str] = []
    for option in known:
        old, new = _get(loaded.settings, option), _get(fresh.settings, option)
        changed = old != new
        chosen[option.path] = new if option.reloadable else old
        if option.reloadable or not changed:
            sources[option.key] = fresh.sources[option.key]
        if changed:
            (applied if option.reloadable else needs_restart).append(option.key)
    problems: list[str] = []
    settings = _build(settings_type, (), chosen, problems)
    if settings is None or problems:
        raise SettingsError(problems)
    return Reload(settings, applied, needs_restart, Loaded(settings, sources, loaded.component))


def rendered(loaded: Loaded[Any]) -> str:
    """Settings in force as a YAML file, each line with its source as a comment."""
    lines: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for option in options(type(loaded.settings)):
        for depth in range(1, len(option.path)):
            group = option.path[:depth]
            if group not in seen:
                seen.add(group)
                lines.append(f"{'  ' * (depth - 1)}{group[-1]}:")
        value = _yaml(_get(loaded.settings, option))
        indent = "  " * (len(option.path) - 1)
        lines.append(f"{indent}{option.path[-1]}: {value}  # {loaded.sources[option.key]}")
    return "\n".join(lines) + "\n"


def _load(settings_type: type[S], component: str, arguments: Arguments, environ: Mapping[str, str]) -> Loaded[S]:
    known = {option.key: option for option in options(settings_type)}
    problems = list(arguments.problems)
    chosen: dict[tuple[str, ...], Any] = {option.path: option.default for option in known.values()}
    sources = dict.fromkeys(known, "default")
    config = arguments.config or environ.get(env_prefix(component) + "CONFIG", "")
    layers = [
        _from_file(known, config, problems),
        _from_environ(known, component, environ, problems),
        _from_flags(known, arguments, problems),
    ]
    for layer in layers:
        for option, value, source in layer:
            chosen[option.path] = value
            sources[option.key] = source
    settings = None if problems else _build(settings_type, (), chosen, problems)
    if settings is None or problems:
        raise SettingsError(problems)
    return Loaded(settings, sources, component)


_Layer = Iterator[tuple[Option, Any, str]]


def _from_file(known: Mapping[str, Option], path: str, problems: list[str]) -> _Layer:
    if not path:
        return
    # Here and not above: PyYAML is a tenth of a second for every command, and few have a file.
    from slacktide.settings import files

    try:
        entries = files.read(path)
    except SettingsError as error:
        problems += error.problems
        return
    yield from _from_mapping(known, path, (), entries, problems)


def _from_mapping(
    known: Mapping[str, Option],
    path: str,
    prefix: tuple[str, ...],
    entries: Mapping[str, files.Entry],
    problems: list[str],
) -> _Layer:
    from slacktide.settings import files

    groups = {option.path[: len(prefix) + 1] for option in known.values() if len(option.path) > len(prefix) + 1}
    for key, entry in entries.items():
        here = (*prefix, key)
        name, place = ".".join(here), f"file {path} line {entry.line}"
        option = known.get(name)
        if option is not None:
            try:
                yield option, values.from_file(option, files.plain(entry.value)), f"file {path}"
            except ValueError as error:
                problems.append(f"{place}: {name} {error}")
        elif here not in groups:
            problems.append(f"{place}: unknown key {name}{values.nearest(name, known)}")
        elif isinstance(entry.value, dict):
            yield from _from_mapping(known, path, here, entry.value, problems)
        elif entry.value is not None:
            problems.append(f"{place}: {name} is a group: put its keys below it, indented")


def _from_environ(
    known: Mapping[str, Option], component: str, environ: Mapping[str, str], problems: list[str]
) -> _Layer:
    prefix = env_prefix(component)
    by_name = {option.env(component): option for option in known.values()}
    for name, text in sorted(environ.items()):
        if not name.startswith(prefix) or name == prefix + "CONFIG":
            continue
        option = by_name.get(name)
        if option is not None:
            try:
                yield option, values.from_text(option, text), f"env {name}"
            except ValueError as error:
                problems.append(f"env {name}: {option.key} {error}")
        elif not _SERVICE_LINK.fullmatch(name.removeprefix(prefix)):
            near = values.nearest(
                name.removeprefix(prefix), (known_name.removeprefix(prefix) for known_name in by_name)
            )
            problems.append(f"env {name}: unknown variable{near.replace(': ', f': {prefix}', 1)}")


def _from_flags(known: Mapping[str, Option], arguments: Arguments, problems: list[str]) -> _Layer:
    for key, text in arguments.values.items():
        option = known[key]
        try:
            yield option, values.from_text(option, text), f"flag {option.flag}"
        except ValueError as error:
            problems.append(f"flag {option.flag}: {key} {error}")


def _build(
    settings_type: type[S], prefix: tuple[str, ...], chosen: Mapping[tuple[str, ...], Any], problems: list[str]
) -> S | None:
    """The settings struct with its groups; rules that span fields speak here. None when a group cannot be made."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(settings_type):
        path = (*prefix, field.name)
        if path in chosen:
            fields[field.name] = chosen[path]
        else:
            # Asked of the field, not of an instance: a rule that spans fields may refuse one made of defaults alone.
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            assert is_group(type(default)), f"{path} is neither an option nor a group"
            fields[field.name] = _build(type(default), path, chosen, problems)
    if any(value is None and (*prefix, name) not in chosen for name, value in fields.items()):
        return None
    try:
        return settings_type(**fields)
    except ValueError as error:
        problems.append(f"{'.'.join(prefix) + ': ' if prefix else ''}{error}")
        return None


def _get(settings: Settings, option: Option) -> Any:
    value: Any = settings
    for name in option.path:
        value = getattr(value, name)
    return value


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(_yaml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_yaml(str(key))}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Settings):
        return _yaml({name: item for name, item in msgspec.structs.asdict(value).items() if item is not None})
    text = value_text(value)
    if isinstance(value, (bool, int, float)):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _leave(text: str) -> None:
    sys.stdout.write(text)
    raise SystemExit(0)
