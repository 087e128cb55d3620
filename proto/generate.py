"""Generate slacktide/v1 from proto/, or check that what is checked in is what a fresh generation gives.

python proto/generate.py            write the stubs
python proto/generate.py --check    exit 1 and say how they differ
"""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "proto" / "slacktide" / "v1").glob("*.proto"))
TARGET = ROOT / "slacktide" / "v1"


def generate(into: Path) -> None:
    """Run protoc with the message, type and gRPC generators; SystemExit when it fails."""
    well_known = str(files("grpc_tools").joinpath("_proto"))
    plugins = [f"--plugin=protoc-gen-{name}={_tool(f'protoc-gen-{name}')}" for name in ("mypy", "mypy_grpc")]
    outputs = [f"--{name}_out={into}" for name in ("python", "grpc_python", "mypy", "mypy_grpc")]
    sources = [str(path.relative_to(ROOT / "proto")) for path in SOURCES]
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", *plugins, *outputs, *sources]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its messages are above")


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is missing: install the dev extra (make setup)")
    return found


def _generated(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(directory.iterdir()) if "_pb2" in path.name}


def main() -> int:
    """Write or compare; the exit status says whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as temporary:
        generate(Path(temporary))
        fresh = _generated(Path(temporary) / "slacktide" / "v1")
    if not check:
        for name in _generated(TARGET).keys() - fresh.keys():
            (TARGET / name).unlink()
        for name, text in fresh.items():
            (TARGET / name).write_text(text)
        return 0
    current = _generated(TARGET)
    if current == fresh:
        return 0
    for name in sorted(current.keys() | fresh.keys()):
        before, after = current.get(name, ""), fresh.get(name, "")
        lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
        sys.stderr.writelines(difflib.unified_diff(*lines, f"checked in {name}", f"fresh {name}", n=1))
    sys.stderr.write("slacktide/v1 is not what proto/ generates: run `make proto` and commit the result\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
