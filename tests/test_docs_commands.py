"""Commands of the pages that are marked runnable are run: the quick start as a newcomer goes it, the others in turn."""

from __future__ import annotations

import subprocess
import tempfile

import pytest

from tests.marked import ROOT, blocks, pages, run, workshop
from tests.whole.support import SLACKTIDE, configured, started

WALKS = [ROOT / "docs" / "quick-start.md", ROOT / "README.md"]
"""Pages that start a Slacktide and end it."""

OTHERS = [page for page in pages() if page not in WALKS]

AGENT = """
policies: [batch_limits, weight, spread, burst, contention, evict]
shortage: {run_delay_cut: 100, psi_cut: 1}
drill: {refuse_in_trouble: false}
drill_targets: {detected_seconds: 0, throttled_seconds: 0, evicted_seconds: 0, recovered_seconds: 0}
"""
"""What else this machine does is no trouble of the node, and no drill is held against times."""

pytestmark = [pytest.mark.whole, pytest.mark.timeout(400)]


def walk(page, folder, state):
    for block in here(page):
        if not block.missing():
            run(block, folder, state)


def here(page):
    """Blocks of a page that are about one machine."""
    return [block for block in blocks(page) if not block.on_cluster]


@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.name)
def test_a_newcomers_walk_ends_where_it_began(page, tmp_path):
    assert here(page)
    with tempfile.TemporaryDirectory(prefix="st") as state:
        configured(state, {"agent": AGENT})
        try:
            walk(page, workshop(tmp_path), state)
        finally:
            ended = subprocess.run(
                [*SLACKTIDE, "--state", state, "down", "--now"], capture_output=True, text=True, timeout=120, check=True
            )
        assert "nothing was running" in ended.stdout, f"{page.name} leaves something behind"


@pytest.fixture(scope="module")
def running():
    with started(config={"agent": AGENT}) as up:
        yield up


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_as_they_stand(page, running, tmp_path):
    lacking = {name for block in here(page) for name in block.missing()}
    if all(block.missing() for block in here(page)):
        pytest.skip(f"not installed: {', '.join(sorted(lacking))}")
    try:
        walk(page, workshop(tmp_path), running.root)
    finally:
        running.clear()


def test_a_mark_without_a_block_is_not_overlooked(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n\n```\ntrue\n```\n")
    assert [(block.script, block.line) for block in blocks(page)] == [("true\n", 1)]
    for wrong in (
        "<!-- run -->\ntext\n",
        "<!-- run: when=later -->\n```\ntrue\n```\n",
        "<!-- run: needs=jq --> \n```\n",
    ):
        page.write_text(wrong)
        with pytest.raises(AssertionError):
            blocks(page)


def test_a_block_that_fails_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n```\nfalse\ntrue\n```\n\n<!-- run: code=3 -->\n```\nexit 3\n```\n")
    first, second = blocks(page)
    with pytest.raises(AssertionError, match="ended with 1"):
        run(first, tmp_path, tmp_path)
    run(second, tmp_path, tmp_path)
