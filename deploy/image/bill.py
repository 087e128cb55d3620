# ruff: noqa: INP001 - scripts beside what they build, not a package
"""The bill of materials of an image, by cyclonedx-bom: its Python packages as that tool finds them, and Debian's."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rootfs import BuildError, run

TOOL: Final = "cyclonedx-bom==7.5.0"
_LIBRARY: Final = "usr/local/lib/python3.11/dist-packages"


def of(root: Path, name: str, version: str, packages: list[dict[str, str]], epoch: int) -> str:
    """CycloneDX 1.6 as JSON of the image whose files are below `root`. Raises BuildError."""
    with tempfile.TemporaryDirectory(prefix="bill-") as directory:
        # The tool asks an interpreter where its packages are: those of the image are below another root.
        interpreter = Path(directory) / "python"
        interpreter.write_text(f"#!/bin/sh\necho '{json.dumps(['', str(root / _LIBRARY)])}'\n", encoding="utf-8")
        interpreter.chmod(0o755)
        found = run([str(_tool()), "environment", "--output-reproducible", str(interpreter)], cwd=directory)
    return _whole(json.loads(found), name, version, packages, epoch)


def _whole(bill: dict[str, Any], name: str, version: str, packages: list[dict[str, str]], epoch: int) -> str:
    debian = [_component(fields) for fields in packages]
    bill["components"] = sorted([*bill.get("components", []), *debian], key=lambda one: str(one["bom-ref"]))
    bill["dependencies"] = bill.get("dependencies", []) + [{"ref": one["bom-ref"]} for one in debian]
    metadata = bill.setdefault("metadata", {})
    metadata["component"] = {"type": "container", "bom-ref": name, "name": name, "version": version}
    metadata["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat()
    return json.dumps(bill, indent=2, sort_keys=True) + "\n"


def _component(fields: dict[str, str]) -> dict[str, str]:
    package, version = fields["Package"], fields["Version"]
    purl = f"pkg:deb/debian/{quote(package, safe='')}@{quote(version, safe='')}?arch={fields['Architecture']}"
    return {"type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl}


def _tool() -> Path:
    """The tool, in an environment of its own in the user's cache: it is none of what is listed."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(home) / "slacktide" / "image" / TOOL.replace("==", "-")
    program = directory / "bin" / "cyclonedx-py"
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            run([sys.executable, "-m", "venv", str(directory)])
            pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            run([*pip, TOOL])
    if not program.exists():
        raise BuildError(f"{TOOL} did not bring cyclonedx-py")
    return program
