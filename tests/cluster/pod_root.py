"""Becomes a container's command in a root of its own: `python -S pod_root.py SPEC.json`. Needs root; stdlib only.

The root is the machine's, file system by file system, with the pod's volumes in their places: nothing of the machine is
written for it, and it is gone with the last process in it. SPEC: `argv`, `env` (its HOSTNAME becomes the host name),
`root` (an empty directory), `mounts` (path in the pod -> what is mounted there), `groups` (directories of its cgroup).
"""

import ctypes
import json
import os
import signal
import socket
import sys

_NEW_MOUNTS, _NEW_NAMES = 0x00020000, 0x04000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_PARENT_DEATH = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(result, what):
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind, flags):
    """mount(2). Raises OSError."""
    words = [word.encode() if word else None for word in (source, target, kind)]
    _checked(_LIBC.mount(*words, ctypes.c_ulong(flags), None), f"mount on {target}")


def bind(source, target):
    """Show a file or directory, with all that is mounted below it, in another place. Raises OSError."""
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        with open(target, "xb"):
            pass
    mount(source, target, "", _BIND | _RECURSIVE)


def show(directory, root, mounts):
    """Show `directory` of the machine below `root`; `mounts` are the absolute paths that have another content."""
    inner = {path for path in mounts if path.startswith(directory.rstrip("/") + "/")}
    own = {path for path in inner if os.path.dirname(path) == directory}
    opened = {
        directory.rstrip("/") + "/" + path[len(directory.rstrip("/")) + 1 :].split("/")[0] for path in inner - own
    }
    for path in sorted(opened | own):
        target = root + path
        if path in own:
            bind(mounts[path], target)
        else:
            os.mkdir(target)
            show(path, root, mounts)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    for name in names:
        path = f"{directory.rstrip('/')}/{name}"
        if path in opened | own:
            continue
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
        elif os.path.isdir(path) or os.path.isfile(path):
            bind(path, root + path)


def main():
    """Join the cgroups, make the root, become the command."""
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    _LIBC.prctl(_PARENT_DEATH, signal.SIGKILL)
    for group in spec["groups"]:
        with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")
    root = spec["root"]
    _checked(_LIBC.unshare(_NEW_MOUNTS | _NEW_NAMES), "namespaces of its own")
    # Daemons tell their replicas apart by it.
    socket.sethostname(spec["env"]["HOSTNAME"])
    mount("", "/", "", _RECURSIVE | _PRIVATE)
    mount("tmpfs", root, "tmpfs", 0)
    # Where a part of the path is a link, the place is what it leads to: /var/run is /run.
    places = {
        os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)): source
        for path, source in spec["mounts"].items()
    }
    show("/", root, places)
    os.chroot(root)
    os.chdir("/")
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])


if __name__ == "__main__":
    main()
