"""The pages become a site without a warning: no page is left out, no link between pages is dead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_pages_become_a_site(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(tmp_path / "site")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert made.returncode == 0, made.stderr
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert {page.stem for page in (tmp_path / "site").glob("*.html")} == pages | {"genindex", "search"}
