"""Completion in real shells, and as a plugin of a real kubectl."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from cli.completing import main
from cli.main import cli
from tests.cli.test_cluster import be_pod, node

NO_FILES, FILES = ":4", ":0"


def asked(capsys, *words):
    assert main(words) == 0
    *found, directive = capsys.readouterr().out.splitlines()
    return [line.split("\t")[0] for line in found], directive


@pytest.mark.parametrize(
    ("words", "found", "directive"),
    [
        (("do",), ["down", "doctor"], NO_FILES),
        (("top", "--so"), ["--sort"], NO_FILES),
        (("top", "--only", "s"), ["silent", "selling"], NO_FILES),
        (("-o", "json", "explain", "n"), ["node"], NO_FILES),
        (("doctor", "--bundle", "x"), [], NO_FILES),
        (("simulate", ""), [], FILES),
        (("nonsense", ""), None, NO_FILES),
    ],
)
def test_kubectl_is_answered(capsys, words, found, directive):
    got, said = asked(capsys, *words)
    assert said == directive
    assert found is None or [one for one in found if one in got] == found


def test_without_words_all_commands_are_offered_with_what_they_do(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("top\t") for line in lines)


@pytest.fixture
def words(twin):
    twin.nodes = [node("worker-1"), node("worker-2"), node("gpu")]
    twin.put(be_pod("nightly", "worker-1"))
    twin.put({**be_pod("web", "worker-1"), "metadata": {"name": "web", "namespace": "default", "uid": "w"}})
    return twin


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (("forecast", "w"), ["worker-1", "worker-2"]),
        (("logs", ""), ["web", "team/nightly"]),
        (("rm", "-n", "team", "n"), ["nightly"]),
    ],
)
def test_names_are_those_that_are_there(words, app, typed, found):
    *args, incomplete = typed
    items = ShellComplete(cli, {"obj": app}, "slacktide", "").get_completions(args, incomplete)
    assert sorted(item.value for item in items) == sorted(found)


def test_nobody_who_answers_is_no_error(words, app):
    words.go_away()
    assert ShellComplete(cli, {"obj": app}, "slacktide", "").get_completions(["forecast"], "w") == []


def script(shell):
    code = f"import sys; from cli.main import main; sys.exit(main(['completion', '{shell}']))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture
def programs(tmp_path):
    """The command and its two faces for kubectl on PATH, as an installation has them."""
    for name, call in (
        ("slacktide", "from cli.main import main"),
        ("kubectl-slacktide", "from cli.main import kubectl as main"),
        ("kubectl_complete-slacktide", "from cli.completing import main"),
    ):
        path = tmp_path / name
        path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {os.getcwd()!r})\n{call}\nsys.exit(main())\n"
        )
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


TRIES = {
    "bash": "COMP_WORDS=(slacktide do); COMP_CWORD=1; compopt() { :; }; _slacktide_completion slacktide; "
    'printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'complete -C "slacktide do" | string split -f1 \\t',
}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_with_its_script(programs, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    run = subprocess.run(
        [shell, "-c", f"{script(shell)}\n{TRIES[shell]}"], env=programs, capture_output=True, text=True, timeout=60
    )
    assert sorted(run.stdout.split()) == ["doctor", "down"], run.stderr


def test_zsh_can_read_its_script():
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    subprocess.run(["zsh", "-n", "-c", script("zsh")], check=True, timeout=60)


def test_kubectl_completes_the_plugin(programs):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    asked = ["kubectl", "__complete", "slacktide", "forecast", "--res"]
    run = subprocess.run(asked, env=programs, capture_output=True, text=True, timeout=60, check=True)
    assert "--resource" in run.stdout, run.stderr
