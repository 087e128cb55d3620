"""How much longer a test waits where the machine is slow, such as an emulated one. Assertions stay as they are."""

from __future__ import annotations

import os

VARIABLE = "SLACKTIDE_TEST_PATIENCE"

PATIENCE = float(os.environ.get(VARIABLE, "1"))
"""Factor on every deadline of a wait."""
