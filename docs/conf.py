# ruff: noqa: INP001 - read by Sphinx, not a package
"""How the pages become a site: `make docs`."""

from __future__ import annotations

project = "Slacktide"
author = "The Slacktide authors"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Slacktide"
html_static_path = ["pictures"]
html_copy_source = False
nitpicky = True
# Blocks without a language are commands and their output: nothing to colour.
highlight_language = "none"
# Links out of docs/ lead to files of the repository, which the site does not hold; tests/test_docs.py checks them.
suppress_warnings = ["myst.xref_missing"]
