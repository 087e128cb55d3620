"""Commands in the pages that are marked to be run, and how they are run.

A line `<!-- run -->` before a fenced block marks it; neither the site nor GitHub shows it. Words may follow a colon:
`needs=PROGRAM` (the block is left out, with the reason, where that is not installed), `code=N` (the last line ends so),
`with=cluster` (it is run on a real API server, by tests/deploy/test_docs_kubectl.py).
A block is a script of bash that ends at the first command that fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

_BLOCK = re.compile(
    r"^<!-- run(?:: (?P<words>[^>]*?))? -->\n\n?```(?P<language>\w*)\n(?P<script>.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"^ *<!-- *run\b.*$", re.MULTILINE)
_SECONDS = 100


@dataclass(frozen=True)
class Block:
    """A marked block: its page, the line it begins at, its script and what it needs."""

    page: Path
    line: int
    script: str
    needs: tuple[str, ...]
    code: int
    on_cluster: bool

    def __str__(self):
        return f"{self.page.name}:{self.line}"

    def missing(self):
        """Programs that it needs and that are not installed."""
        return [name for name in self.needs if shutil.which(name) is None]


def blocks(page):
    """Marked blocks of a page, in order. Every mark is one of a block, and says only what is known here."""
    text = page.read_text()
    found = []
    for block in _BLOCK.finditer(text):
        words = dict(word.split("=", 1) for word in (block["words"] or "").split())
        assert not words.keys() - {"needs", "code", "with"}, f"{page.name}: {words}"
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, block.start()) + 1,
                script=block["script"],
                needs=tuple(filter(None, words.get("needs", "").split(","))),
                code=int(words.get("code", "0")),
                on_cluster=words.get("with") == "cluster",
            )
        )
    assert len(found) == len(_MARK.findall(text)), f"{page.name}: a mark without its block"
    return found


def pages():
    """Pages with blocks that are run on a machine."""
    return [page for page in PAGES if any(not block.on_cluster for block in blocks(page))]


def run(block, folder, state, **environment):
    """Run a block in `folder` as somebody who has installed Slacktide would; fails with what it printed.

    `state` is the state directory of the Slacktide that it starts or finds; `environment` has more variables.
    """
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "SLACKTIDE_STATE": str(state),
        **environment,
    }
    # What runs here need not find the packages by the working directory.
    environ.pop("PYTHONPATH", None)
    shell = ["bash", "--norc", "-eo", "pipefail", "-c", block.script]
    done = subprocess.run(shell, cwd=folder, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False)
    said = f"{block} ended with {done.returncode}\n{block.script}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == block.code, said
    return done.stdout


def workshop(folder):
    """A directory that looks like the repository to the commands of the pages, and where they may write.

    A server and something to make are there, too, as everybody has.
    """
    for name in ("docs", "deploy", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    server = folder / "server"
    server.write_text("#!/bin/sh\nexec sleep 300\n")
    server.chmod(0o755)
    (folder / "Makefile").write_text("all:\n\t@echo made\n")
    return folder
