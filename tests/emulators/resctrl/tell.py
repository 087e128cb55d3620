"""One command to an emulator that was started with --control.

`python -m tests.emulators.resctrl.tell SOCKET demand group=be bytes_per_second=1e9 footprint_bytes=8e6`
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from tests.emulators.resctrl.control import Control, command_names
from tests.emulators.resctrl.errors import ResctrlError


def main() -> int:
    """Prints the result as JSON; 1 where the command is refused, 2 without one."""
    if len(sys.argv) < 3:
        print(f"{__doc__}\nCommands: {', '.join(command_names())}", file=sys.stderr)
        return 2
    path, name, *pairs = sys.argv[1:]
    arguments = {key: _value(text) for key, _, text in (pair.partition("=") for pair in pairs)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        control = Control(connection)
        try:
            print(json.dumps(getattr(control, name)(**arguments)))
        except (ResctrlError, ValueError) as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            control.close()
    return 0


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main())
