"""Flags of a daemon: `--name value` or `--name=value`, all of them known from the settings, none abbreviated."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from slacktide import __version__
from slacktide.settings.schema import Option, env_prefix, range_text, value_text
from slacktide.settings.values import nearest


@dataclass(slots=True)
class Arguments:
    """What the command line said: texts by dotted key, and every problem with it."""

    values: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    config: str = ""
    help: bool = False
    version: bool = False
    print_settings: bool = False


def parse_arguments(known: Sequence[Option], argv: Sequence[str]) -> Arguments:
    """Split `argv` (without the program's name) into texts; the last of a repeated flag counts. Never raises."""
    arguments = Arguments()
    by_flag = {option.flag: option for option in known}
    rest = list(argv)
    while rest:
        name, given, value = rest.pop(0).partition("=")
        if _switch(arguments, name) and not given:
            continue
        option = by_flag.get(name)
        if option is None and name != "--config":
            arguments.problems.append(_unknown(name, by_flag))
            if rest and not given and name.startswith("--") and not rest[0].startswith("--"):
                rest.pop(0)
            continue
        if not given:
            missing = not rest or rest[0].startswith("--")
            if option is not None and option.kind is bool and (missing or rest[0] not in {"true", "false"}):
                value = "true"
            elif missing:
                arguments.problems.append(f"flag {name}: needs a value, such as {name} {_example(option)}")
                continue
            else:
                value = rest.pop(0)
        if option is None:
            arguments.config = value
        else:
            arguments.values[option.key] = value
    return arguments


def help_text(known: Sequence[Option], component: str, about: str) -> str:
    """All flags with unit, range and default, for a terminal of this width."""
    width = min(110, max(60, shutil.get_terminal_size().columns))
    lines = [f"slacktide {component} {__version__}", "usage: [--config FILE] [--SETTING VALUE ...]", ""]
    if about:
        lines += [*textwrap.wrap(about, width), ""]
    lines += textwrap.wrap(
        "Every setting can stand in the file, in the environment or in a flag; a flag wins over the environment and "
        f"that over the file. The variable of --a.b-c is {env_prefix(component)}A__B_C.",
        width,
    )
    lines += ["", "  --config FILE", "      YAML file with settings", "  --print-settings"]
    lines += ["      print the settings in force and where each came from, then exit", "  --version", "  --help", ""]
    for option in known:
        lines.append(f"  {option.flag} {'' if option.kind is bool else _placeholder(option)}".rstrip())
        lines += textwrap.wrap(_explained(option), width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) + "\n"


def _switch(arguments: Arguments, name: str) -> bool:
    if name in {"--help", "-h"}:
        arguments.help = True
    elif name == "--version":
        arguments.version = True
    elif name == "--print-settings":
        arguments.print_settings = True
    else:
        return False
    return True


def _unknown(name: str, by_flag: dict[str, Option]) -> str:
    if not name.startswith("-"):
        return f"argument {name!r}: no such thing; settings are given as --name value"
    return f"flag {name}: unknown{nearest(name, [*by_flag, '--config', '--help', '--print-settings', '--version'])}"


def _example(option: Option | None) -> str:
    if option is None:
        return "settings.yaml"
    return value_text(option.default) or _placeholder(option)


def _placeholder(option: Option) -> str:
    return "|".join(option.choices) or option.unit.upper() or option.path[-1].upper()


def _explained(option: Option) -> str:
    notes = [range_text(option.bounds) + (f" {option.unit}" if option.unit else "")] if option.bounds else []
    notes.append(f"default {value_text(option.default) or 'none'}")
    if option.reloadable:
        notes.append("can be reloaded")
    return f"{option.description} ({'; '.join(notes)})".strip()
