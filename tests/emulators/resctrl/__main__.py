"""python -m tests.emulators.resctrl MOUNTPOINT --profile NAME: serve an emulated machine until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import select
import socket
import sys
import threading

from tests.emulators.resctrl.control import Commands, command_names, listen, serve_connection
from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.filesystem import serve
from tests.emulators.resctrl.model import Model
from tests.emulators.resctrl.mounting import is_mounted, missing, unmount
from tests.emulators.resctrl.profiles import PROFILES, Profile

TICK_SECONDS = 0.2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.emulators.resctrl",
        description="Mount an emulated resctrl. Ctrl-C unmounts.",
        epilog=f"Commands for --control (see tests.emulators.resctrl.tell): {', '.join(command_names())}.",
    )
    parser.add_argument("mountpoint", nargs="?", help="an empty directory")
    parser.add_argument("--profile", default="intel-2s", choices=sorted(PROFILES), metavar="NAME")
    parser.add_argument("--list-profiles", action="store_true", help="name every machine and end")
    parser.add_argument("--options", help="mount options instead of the profile's, with commas")
    parser.add_argument("--control", metavar="SOCKET", help="take commands at this Unix socket")
    parser.add_argument("--everyone", action="store_true", help="let other users enter, as modes let them")
    parser.add_argument("--read-only", action="store_true", help="mount without the right to write")
    parser.add_argument("--profile-file", help=argparse.SUPPRESS)
    parser.add_argument("--control-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> Profile:
    if options.profile_file is None:
        return PROFILES[options.profile]
    with open(options.profile_file, "rb") as file:
        profile: Profile = pickle.load(file)
    return profile


def leave(mountpoint: str) -> None:
    """Unmount and end, whatever is open: used when no one is left who could."""
    with contextlib.suppress(OSError):
        unmount(mountpoint)
    os._exit(0)


def watch(parent: int, mountpoint: str) -> None:
    """Leave when `parent` ends."""
    try:
        descriptor = os.pidfd_open(parent)
        if os.getppid() == parent:
            select.select([descriptor], [], [])
    except ProcessLookupError:
        pass
    leave(mountpoint)


def talk(commands: Commands, connection: socket.socket, mountpoint: str) -> None:
    serve_connection(commands, connection, ['{"ready": true}'])
    leave(mountpoint)


def tick(model: Model, stop: threading.Event) -> None:
    """Keep up with threads that are born, so that children of short-lived parents find their group."""
    while not stop.wait(TICK_SECONDS):
        with contextlib.suppress(ResctrlError):
            model.tick()


def main() -> int:
    options = arguments()
    if options.list_profiles:
        for profile in PROFILES.values():
            print(f"{profile.name:12} {profile.text}")
        return 0
    if options.mountpoint is None:
        print("a mount point is missing; see --help", file=sys.stderr)
        return 2
    mountpoint = os.path.realpath(options.mountpoint)
    reason = missing() if options.parent is None else None
    if reason is None and not os.path.isdir(mountpoint):
        reason = f"{mountpoint} is no directory"
    if reason is None and is_mounted(mountpoint):
        reason = f"{mountpoint}: something is mounted there already (EBUSY)"
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    chosen_options = None if options.options is None else frozenset(filter(None, options.options.split(",")))
    try:
        model = Model(chosen(options), options=chosen_options)
    except ResctrlError as error:
        print(f"mount options refused: {error.symbol}", file=sys.stderr)
        return 1
    run(model, mountpoint, options)
    return 0


def run(model: Model, mountpoint: str, options: argparse.Namespace) -> None:
    commands, stop = Commands(model), threading.Event()

    def ready() -> None:
        threading.Thread(target=tick, args=(model, stop), daemon=True).start()
        if options.parent is not None:
            threading.Thread(target=watch, args=(options.parent, mountpoint), daemon=True).start()
        if options.control_fd is not None:
            connection = socket.socket(fileno=options.control_fd)
            threading.Thread(target=talk, args=(commands, connection, mountpoint), daemon=True).start()
        else:
            print(f"{model.profile.name} is mounted at {mountpoint}; Ctrl-C unmounts", flush=True)

    server = listen(commands, options.control) if options.control else None
    try:
        serve(model, mountpoint, ready, options.everyone, options.read_only)
    finally:
        stop.set()
        if server is not None:
            server.close()
            os.unlink(options.control)


if __name__ == "__main__":
    sys.exit(main())
