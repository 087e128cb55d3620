"""For all tests: how long an example of hypothesis takes says more of the machine than of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("slacktide", deadline=None)
settings.load_profile("slacktide")
