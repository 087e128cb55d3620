from __future__ import annotations

import enum
import os
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from slacktide import __version__
from slacktide.errors import SettingsError
from slacktide.settings import (
    ClusterSettings,
    DaemonSettings,
    ResourceNames,
    Settings,
    describe,
    load,
    options,
    reloaded,
    rendered,
)


class Mode(enum.StrEnum):
    FAST = "fast"
    SAFE = "safe"


class ReportSettings(Settings, frozen=True):
    spool_bytes: Annotated[int, Meta(ge=1024, le=1 << 40, description="size of the spool")] = 64 << 20
    every_seconds: Annotated[float, Meta(gt=0, le=600, description="pause", extra={"reloadable": True})] = 10.0


class AgentSettings(DaemonSettings, frozen=True):
    turn_seconds: Annotated[float, Meta(ge=0.1, le=60, description="one turn", extra={"reloadable": True})] = 1.0
    keep_days: Annotated[int, Meta(ge=1, description="history")] = 7
    cgroups: Annotated[Literal["auto", "off"], Meta(description="cgroups")] = "auto"
    mode: Mode = Mode.SAFE
    node: Annotated[str, Meta(max_length=8, pattern="^[a-z0-9]*$")] = ""
    targets: tuple[str, ...] = ()
    shares: tuple[Annotated[int, Meta(ge=2)], ...] = ()
    weights: dict[str, Annotated[float, Meta(ge=0)]] = {}  # noqa: RUF012 - msgspec copies it for each struct
    reserve_ratio: Annotated[float, Meta(ge=0, lt=1)] | None = None
    dry_run: bool = False
    report: ReportSettings = ReportSettings()

    def __post_init__(self) -> None:
        if self.dry_run and self.cgroups == "off":
            raise ValueError("dry_run with cgroups off would do nothing: choose one")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "agent.yaml"

    def write(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write


def use(argv=(), environ=None, settings_type=AgentSettings):
    return load(settings_type, "agent", list(argv), environ or {})


def problems(argv=(), environ=None, settings_type=AgentSettings) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        use(argv, environ, settings_type)
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


def test_defaults_alone():
    loaded = use()
    assert loaded.settings == AgentSettings()
    assert set(loaded.sources.values()) == {"default"}
    assert "report.spool_bytes" in loaded.sources


def test_flag_over_environment_over_file_over_default(config):
    path = config("turn_seconds: 2\nkeep_days: 2\nnode: file\nreport: {every_seconds: 2, spool_bytes: 2048}\n")
    environ = {
        "SLACKTIDE_AGENT_CONFIG": path,
        "SLACKTIDE_AGENT_KEEP_DAYS": "3",
        "SLACKTIDE_AGENT_NODE": "env",
        "SLACKTIDE_AGENT_REPORT__SPOOL_BYTES": "3Ki",
    }
    loaded = use(["--node", "flag", "--report.spool-bytes=4096"], environ)
    settings = loaded.settings
    assert (settings.turn_seconds, settings.keep_days, settings.node) == (2.0, 3, "flag")
    assert (settings.report.every_seconds, settings.report.spool_bytes) == (2.0, 4096)
    assert loaded.sources == {
        **dict.fromkeys(loaded.sources, "default"),
        "turn_seconds": f"file {path}",
        "keep_days": "env SLACKTIDE_AGENT_KEEP_DAYS",
        "node": "flag --node",
        "report.every_seconds": f"file {path}",
        "report.spool_bytes": "flag --report.spool-bytes",
    }


def test_the_flag_names_the_file_before_the_environment_does(config, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("keep_days: 9")
    assert use(["--config", str(other)], {"SLACKTIDE_AGENT_CONFIG": config("keep_days: 2")}).settings.keep_days == 9


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 1), ("0.5", 0.5), ("250ms", 0.25), ("5s", 5), ("0.5m", 30), ("1m", 60), ("100000us", 0.1), ("6e1", 60)],
)
def test_seconds_take_a_unit(config, text, seconds):
    assert use(["--turn-seconds", text]).settings.turn_seconds == seconds
    assert use(["--config", config(f"turn_seconds: {text}")]).settings.turn_seconds == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("2048", 2048), ("64Mi", 64 << 20), ("1.5Gi", 3 << 29), ("5k", 5000), ("1e6", 10**6)]
)
def test_bytes_take_a_suffix(config, text, size):
    assert use(["--report.spool-bytes", text]).settings.report.spool_bytes == size
    assert use(["--config", config(f"report:\n  spool_bytes: {text}")]).settings.report.spool_bytes == size


@pytest.mark.parametrize("text", ["5Gi", "5 s", "1h30m", "soon", "", "5e", "-", "1:30", "s", "1_0"])
def test_a_wrong_unit_of_time_says_what_to_write(text):
    (problem,) = problems([f"--turn-seconds={text}"])
    assert problem == (
        f"flag --turn-seconds: turn_seconds is a time, and {text!r} is none: "
        "write seconds as a number, or with a unit: 250ms, 5s, 2m, 1h, 1d"
    )


@pytest.mark.parametrize("text", ["5s", "64MB", "64 Mi", "1ki", "a lot", ""])
def test_a_wrong_unit_of_memory_says_what_to_write(text):
    (problem,) = problems([f"--report.spool-bytes={text}"])
    assert f"report.spool_bytes is an amount of memory, and {text!r} is none" in problem
    assert "64Mi" in problem


def test_a_fraction_of_a_byte_is_none():
    assert "fraction of a byte" in problems(["--report.spool-bytes", "100m"])[0]


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--turn-seconds=0.01", "turn_seconds must be 0.1 to 60 seconds, not 0.01"),
        ("--turn-seconds=2m", "turn_seconds must be 0.1 to 60 seconds, not 120.0"),
        ("--report.every-seconds=0", "report.every_seconds must be more than 0, at most 600 seconds, not 0.0"),
        ("--keep-days=0", "keep_days must be at least 1 days, not 0"),
        ("--reserve-ratio=1", "reserve_ratio must be at least 0, less than 1 ratio, not 1.0"),
        ("--report.spool-bytes=1023", "report.spool_bytes must be 1024 to 1099511627776 bytes, not 1023"),
        ("--node=much-too-long", "node must be at most 8 long, matches ^[a-z0-9]*$, not 'much-too-long'"),
        ("--node=UP", "node must be at most 8 long, matches ^[a-z0-9]*$, not 'UP'"),
        ("--shares=5,1", "shares must be at least 2, not 1"),
        ("--weights=a=-1", "weights must be at least 0, not -1.0"),
        ("--turn-seconds=1e999", "turn_seconds is too large a number: 1e999"),
    ],
)
def test_out_of_range_names_range_and_unit(flag, problem):
    assert problems([flag]) == [f"flag {flag.partition('=')[0]}: {problem}"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("turn_seconds: true", "turn_seconds must be a number of seconds, not a truth value True"),
        ("turn_seconds: [1]", "turn_seconds must be a number of seconds, not a list"),
        ("turn_seconds: .inf", "turn_seconds is a time, and '.inf' is none"),
        ("turn_seconds:", "turn_seconds has no value: give one or remove the key"),
        ("keep_days: 1.5", "keep_days must be a whole number of days, not the number 1.5"),
        ("keep_days: '7'", "keep_days must be a whole number of days, not the text '7'"),
        ("node: 5", "node must be text, not 5: put it in quotes"),
        ("node: true", "node must be text, not a truth value True: put it in quotes"),
        ("dry_run: yes", "dry_run must be true or false, not 'yes'"),
        ("dry_run: 1", "dry_run must be true or false, not 1"),
        ("dry_run: True", "dry_run must be true or false, not 'True'"),
        ("cgroups: on", "cgroups must be one of auto, off, not 'on'"),
        ("cgroups: of", "cgroups must be one of auto, off, not 'of'; nearest known: off"),
        ("mode: quick", "mode must be one of fast, safe, not 'quick'"),
        ("targets: a,b", "targets must be a list, not the text 'a,b'"),
        ("targets: [1]", "targets must be text, not 1"),
        ("weights: [a]", "weights must be a mapping of names to values, not a list"),
        ("report: 5", "report is a group: put its keys below it, indented"),
        ("turn_secs: 1", "unknown key turn_secs; nearest known: turn_seconds"),
        ("spool_bytes: 1", "unknown key spool_bytes; nearest known: report.spool_bytes"),
        ("report: {spool: 1}", "unknown key report.spool; nearest known: report.spool_bytes"),
        ("zzz: 1", "unknown key zzz"),
        (
            "observe: {log_level: warn}",
            "observe.log_level must be one of debug, info, warning, error, not 'warn'; nearest known: warning",
        ),
    ],
)
def test_what_a_file_gets_wrong(config, line, problem):
    path = config(f"# first line\n{line}\n")
    (said,) = problems(["--config", path])
    assert said.startswith(f"file {path} line 2: {problem}")


def test_yaml_guesses_nothing(config):
    loaded = use(
        [
            "--config",
            config("cgroups: off\nnode: no\nkeep_days: 010\ntargets: [on, 2024-01-01, ~x]\nreserve_ratio: null\n"),
        ]
    )
    settings = loaded.settings
    assert (settings.cgroups, settings.node, settings.keep_days) == ("off", "no", 10)
    assert settings.targets == ("on", "2024-01-01", "~x")
    assert settings.reserve_ratio is None


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "report:\n", "{}"])
def test_an_empty_file_or_group_sets_nothing(config, text):
    assert use(["--config", config(text)]).settings == AgentSettings()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a\n", ": holds a list: expected a mapping, lines of `key: value`"),
        ("just text", ": holds text: expected a mapping, lines of `key: value`"),
        ("a: 1\nb: [", " line 2 column 5: is not YAML"),
        ("a:\n\tb: 1", " line 2 column 1: is not YAML"),
        ("a: 1\n---\nb: 2", " line 2 column 1: is not YAML"),
        ("a: !!python/object/apply:os.getcwd []", " line 1 column 4: is not YAML"),
        ("node: a\nnode: b", " line 2: node stands here again, first in line 1"),
        (
            "report:\n  spool_bytes: 2048\n  spool_bytes: 2048",
            " line 3: spool_bytes stands here again, first in line 2",
        ),
        ("1: 2", " line 1: key 1 is no text"),
        ("a: \x07", ": is not YAML"),
    ],
)
def test_what_is_no_settings_file(config, text, problem):
    path = config(text)
    (said,) = problems(["--config", path])
    assert said.startswith(f"file {path}{problem}")


def test_a_file_that_cannot_be_read(tmp_path):
    assert problems(["--config", str(tmp_path / "no.yaml")]) == [
        f"file {tmp_path}/no.yaml: cannot be read: No such file or directory; check --config"
    ]
    assert "Is a directory" in problems(["--config", str(tmp_path)])[0]
    (tmp_path / "latin.yaml").write_bytes(b"node: \xe9\n")
    assert "is not UTF-8 text" in problems(["--config", str(tmp_path / "latin.yaml")])[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(config):
    path = config("node: a")
    os.chmod(path, 0)
    assert "Permission denied" in problems(["--config", path])[0]


def test_all_problems_at_once(config):
    path = config("turn_secs: 1\nkeep_days: 0\n")
    said = problems(["--config", path, "--node", "UP", "--nodes", "b", "stray"], {"SLACKTIDE_AGENT_DRY_RUN": "1"})
    assert len(said) == 6
    for part in ("--nodes: unknown; nearest known: --node", "'stray'", "turn_secs", "keep_days", "DRY_RUN", "'UP'"):
        assert any(part in problem for problem in said), part


def test_a_rule_that_spans_fields_speaks_when_the_fields_are_right():
    assert problems(["--dry-run", "--cgroups", "off"]) == ["dry_run with cgroups off would do nothing: choose one"]


def test_a_rule_may_refuse_the_defaults_and_then_a_choice_is_needed():
    class Needy(Settings, frozen=True):
        observe: ReportSettings = ReportSettings()
        node: str = ""

        def __post_init__(self) -> None:
            if not self.node:
                raise ValueError("node is missing: say which one with --node")

    assert problems((), {}, Needy) == ["node is missing: say which one with --node"]
    assert use(["--node", "a"], {}, Needy).settings.node == "a"


def test_environment():
    environ = {
        "SLACKTIDE_AGENT_TARGETS": "a, b",
        "SLACKTIDE_AGENT_SHARES": "2,3",
        "SLACKTIDE_AGENT_WEIGHTS": "a=1,b=0.5",
        "SLACKTIDE_AGENT_DRY_RUN": "true",
        "SLACKTIDE_AGENT_MODE": "fast",
        "SLACKTIDE_AGENT_RESERVE_RATIO": "0.25",
        "SLACKTIDE_AGENT_OBSERVE__LOG_LEVEL": "debug",
    }
    settings = use((), environ).settings
    assert (settings.targets, settings.shares, settings.weights) == (("a", "b"), (2, 3), {"a": 1.0, "b": 0.5})
    assert (settings.dry_run, settings.mode, settings.reserve_ratio) == (True, Mode.FAST, 0.25)
    assert settings.observe.log_level == "debug"
    assert use((), {"SLACKTIDE_AGENT_TARGETS": "", "SLACKTIDE_AGENT_RESERVE_RATIO": ""}).settings == AgentSettings()


def test_an_unknown_variable_of_the_component_is_an_error_and_others_are_left_alone():
    assert problems((), {"SLACKTIDE_AGENT_TURN": "1"}) == [
        "env SLACKTIDE_AGENT_TURN: unknown variable; nearest known: SLACKTIDE_AGENT_TURN_SECONDS"
    ]
    assert problems((), {"SLACKTIDE_AGENT_REPORT_SPOOL_BYTES": "1"}) == [
        "env SLACKTIDE_AGENT_REPORT_SPOOL_BYTES: unknown variable; nearest known: SLACKTIDE_AGENT_REPORT__SPOOL_BYTES"
    ]
    alone = {"SLACKTIDE_STATE": "/x", "SLACKTIDE_PREDICTOR_X": "1", "slacktide_agent_node": "x", "PATH": "/bin"}
    assert use((), alone).settings == AgentSettings()


def test_what_kubernetes_adds_for_a_service_of_the_same_name_is_nobodys_setting():
    links = {
        "SLACKTIDE_AGENT_SERVICE_HOST": "10.0.0.1",
        "SLACKTIDE_AGENT_SERVICE_PORT": "50051",
        "SLACKTIDE_AGENT_SERVICE_PORT_GRPC": "50051",
        "SLACKTIDE_AGENT_PORT": "tcp://10.0.0.1:50051",
        "SLACKTIDE_AGENT_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "SLACKTIDE_AGENT_PORT_50051_TCP_PROTO": "tcp",
        "SLACKTIDE_AGENT_PORT_50051_TCP_PORT": "50051",
        "SLACKTIDE_AGENT_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert use((), links).settings == AgentSettings()


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--node"], "flag --node: needs a value, such as --node NODE"),
        (["--node", "--dry-run"], "flag --node: needs a value, such as --node NODE"),
        (["--keep-days"], "flag --keep-days: needs a value, such as --keep-days 7"),
        (["--config"], "flag --config: needs a value, such as --config settings.yaml"),
        (["--turn_seconds", "1"], "flag --turn_seconds: unknown; nearest known: --turn-seconds"),
        (["--report.spool", "1"], "flag --report.spool: unknown; nearest known: --report.spool-bytes"),
        (["--turn", "1"], "flag --turn: unknown"),
        (["-x"], "flag -x: unknown"),
        (["node=a"], "argument 'node': no such thing; settings are given as --name value"),
        (["--dry-run=yes"], "flag --dry-run: dry_run must be true or false, not 'yes'"),
    ],
)
def test_what_a_command_line_gets_wrong(argv, problem):
    (said,) = problems(argv)
    assert said.startswith(problem)


@pytest.mark.parametrize(
    ("argv", "dry"),
    [
        (["--dry-run"], True),
        (["--dry-run=true"], True),
        (["--dry-run", "false"], False),
        (["--dry-run", "--node", "a"], True),
    ],
)
def test_a_switch_needs_no_value(argv, dry):
    assert use(argv).settings.dry_run is dry


def test_the_last_of_a_repeated_flag_counts_and_a_value_may_begin_with_a_dash():
    assert use(["--node", "a", "--node", "b"]).settings.node == "b"
    assert "-5" in problems(["--keep-days", "-5"])[0]


def test_help_shows_everything_and_leaves(capsys):
    with pytest.raises(SystemExit) as left:
        load(AgentSettings, "agent", ["--help", "--nonsense"], {}, about="Keeps LS pods safe.")
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "Keeps LS pods safe." in text
    assert all(option.flag in text for option in options(AgentSettings))
    assert "one turn (0.1 to 60 seconds; default 1.0; can be reloaded)" in " ".join(text.split())
    assert "--cgroups auto|off" in text


def test_version_and_print_settings(capsys, config):
    with pytest.raises(SystemExit):
        use(["--version"])
    assert capsys.readouterr().out == f"slacktide agent {__version__}\n"
    path = config('node: "a"\ntargets: [x, "y"]\nweights: {a: 1}\n')
    with pytest.raises(SystemExit):
        use(["--config", path, "--print-settings"])
    text = capsys.readouterr().out
    assert f'node: "a"  # file {path}' in text
    again = use(["--config", config(text)])
    assert again.settings == use(["--config", config('node: "a"\ntargets: [x, "y"]\nweights: {a: 1}\n')]).settings
    assert yaml.safe_load(text)["report"]["spool_bytes"] == 64 << 20


def test_print_settings_does_not_hide_a_problem():
    problems(["--print-settings", "--keep-days", "0"])


def test_describe_has_a_row_for_every_setting():
    rows = {row.key: row for row in describe(AgentSettings)}
    assert list(rows) == [option.key for option in options(AgentSettings)]
    turn = rows["turn_seconds"]
    assert (turn.type, turn.unit, turn.range, turn.default, turn.reloadable) == (
        "number",
        "seconds",
        "0.1 to 60",
        "1.0",
        True,
    )
    assert rows["reserve_ratio"].type == "number or nothing"
    assert rows["mode"].range == "fast, safe"
    assert rows["report.spool_bytes"].description == "size of the spool"
    assert not rows["report.spool_bytes"].reloadable


def test_shared_groups_are_described_and_their_defaults_keep_their_own_rules():
    for group in (ClusterSettings, DaemonSettings, ResourceNames):
        assert load(group, "x", [], {}).settings == group()
        assert all(row.description for row in describe(group))


def test_reload_applies_what_can_be_and_names_what_cannot(config):
    path = config("turn_seconds: 1\nkeep_days: 7\n")
    argv = ["--config", path]
    loaded = use(argv)
    config("turn_seconds: 2\nkeep_days: 8\nreport: {every_seconds: 5, spool_bytes: 4096}\n")
    first = reloaded(loaded, argv, {})
    assert first.applied == ["turn_seconds", "report.every_seconds"]
    assert first.needs_restart == ["keep_days", "report.spool_bytes"]
    assert first.settings.turn_seconds == 2.0
    assert (first.settings.keep_days, first.settings.report.spool_bytes) == (7, 64 << 20)
    assert first.loaded.settings == first.settings
    assert first.loaded.sources["report.every_seconds"] == f"file {path}"
    assert first.loaded.sources["report.spool_bytes"] == "default"
    again = reloaded(first.loaded, argv, {})
    assert (again.applied, again.needs_restart) == ([], ["keep_days", "report.spool_bytes"])


def test_a_bad_file_on_reload_changes_nothing_and_says_why(config):
    argv = ["--config", config("turn_seconds: 1\n")]
    loaded = use(argv)
    config("turn_seconds: 500\nnodee: x\n")
    with pytest.raises(SettingsError) as caught:
        reloaded(loaded, argv, {})
    assert len(caught.value.problems) == 2
    assert loaded.settings.turn_seconds == 1.0


def test_a_setting_without_default_or_of_an_impossible_type_is_a_mistake_of_ours():
    class NoDefault(Settings, frozen=True):
        node: str

    class Impossible(Settings, frozen=True):
        value: int | str = 1

    with pytest.raises(TypeError, match=r"NoDefault\.node has no default"):
        options(NoDefault)
    with pytest.raises(TypeError, match="only a union with None"):
        options(Impossible)


@given(st.floats(0.1, 60), st.integers(1024, 1 << 40), st.lists(st.text("abc-", min_size=1), max_size=3), st.booleans())
def test_what_a_flag_says_is_what_is_set(turn, spool, targets, dry):
    argv = [
        f"--turn-seconds={turn}",
        f"--report.spool-bytes={spool}",
        f"--targets={','.join(targets)}",
        f"--dry-run={str(dry).lower()}",
    ]
    settings = use(argv).settings
    assert (settings.turn_seconds, settings.report.spool_bytes, settings.dry_run) == (turn, spool, dry)
    assert settings.targets == tuple(targets)


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_command_line_gives_settings_or_problems_or_leaves(argv):
    try:
        outcome = use(argv).settings
    except (SettingsError, SystemExit) as left:
        outcome = left
    assert isinstance(outcome, AgentSettings) or getattr(outcome, "problems", None) or outcome.code == 0


class PoolSettings(Settings, frozen=True):
    match: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it for each struct
    cap_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    hold_seconds: Annotated[float, Meta(ge=0)] = 5.0


class PooledSettings(DaemonSettings, frozen=True):
    pools: Annotated[tuple[PoolSettings, ...], Meta(description="by label", extra={"reloadable": True})] = ()


def pooled(path, *arguments):
    return load(PooledSettings, "agent", ["--config", path, *arguments], {})


def test_a_list_of_groups_stands_in_the_file_and_prints_as_it_is_read(config):
    loaded = pooled(config("pools:\n- match: {pool: gold}\n  cap_percent: 40\n- hold_seconds: 2m\n"))
    gold, rest = loaded.settings.pools
    assert (gold.match, gold.cap_percent, gold.hold_seconds) == ({"pool": "gold"}, 40.0, 5.0)
    assert (rest.match, rest.cap_percent, rest.hold_seconds) == ({}, None, 120.0)
    assert pooled(config(rendered(loaded))).settings == loaded.settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pools:\n- cap_percent: 140\n", "cap_percent must be 0 to 100 percent, not 140"),
        ("pools:\n- capp_percent: 1\n", "unknown key capp_percent; nearest known: cap_percent"),
        ("pools: [3]\n", "must have mappings as members"),
        ("pools: 3\n", "must be a list"),
    ],
)
def test_a_bad_member_of_a_list_of_groups_is_named(config, text, words):
    with pytest.raises(SettingsError) as error:
        pooled(config(text))
    assert words in error.value.problems[0]
    assert "pools" in error.value.problems[0]


def test_a_list_of_groups_is_no_flag(config):
    with pytest.raises(SettingsError, match="only stand in the settings file"):
        pooled(config(""), "--pools", "x")
