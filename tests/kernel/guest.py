"""A guest with a real, pure cgroup v2: Debian's kernel in QEMU on this machine's own files.

The guest's root is an overlay of this machine's files, read-only by 9p, below a tmpfs, so that the same Python runs the
same sources there and nothing that happens there reaches this machine. One directory is shared for writing, at
/mnt: results come back through it, since what a guest prints and exits with is not reliable.
`tests/kernel/guest-tools` (or `make guest-tools`) fetches the kernel.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path

INSIDE = "SLACKTIDE_GUEST"
"""Set in the guest's environment."""

CPUS = 2
MEMORY = "1536M"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /lower /tmpfs /new
mount -t proc proc /proc
for module in $(cat /modules/order); do insmod /modules/$module; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 machine /lower
mount -t tmpfs -o size=75% tmpfs /tmpfs
mkdir -p /tmpfs/upper /tmpfs/work
mount -t overlay -o lowerdir=/lower,upperdir=/tmpfs/upper,workdir=/tmpfs/work overlay /new
mkdir -p /new/mnt /new/proc /new/sys /new/dev /new/run
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 exchange /new/mnt
umount /proc
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
mount -t devtmpfs devtmpfs /new/dev
mkdir -p /new/dev/shm /new/dev/pts
mount -t tmpfs tmpfs /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs tmpfs /new/run
ip link set lo up
exec switch_root /new /bin/sh /mnt/init
"""

SECOND_INIT = """#!/bin/sh
(sleep {seconds}; echo the guest ran out of time; echo b > /proc/sysrq-trigger) &
sh /mnt/script > /mnt/output 2>&1 < /dev/null
echo $? > /mnt/status
sync
echo b > /proc/sysrq-trigger
"""
"""Restarting ends QEMU (-no-reboot). The guest ends itself also when whoever started it is gone."""


def cache() -> Path:
    """Where guest-tools puts the kernel."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slacktide", "guest")


def why_not() -> str | None:
    """Why no guest can be started here, in one line; None when it can."""
    if os.environ.get(INSIDE):
        return "this is the guest"
    if platform.machine() != "x86_64":
        return "a guest is prepared for x86_64 only"
    for tool in ("qemu-system-x86_64", "busybox"):
        if shutil.which(tool) is None:
            return f"no {tool}: make guest-tools"
    if not (cache() / "vmlinuz").exists() or not (cache() / "modules" / "order").exists():
        return "no kernel for a guest: make guest-tools"
    return None


def run(exchange: Path, script: str, seconds: float, environment: dict[str, str]) -> int | None:
    """Run a shell script in a new guest, with `exchange` as /mnt; its exit status, None when the guest gave none.

    What it prints is in `exchange`/output, what the guest's kernel says in `exchange`/console.
    """
    assert why_not() is None
    exports = "".join(f"export {name}='{value}'\n" for name, value in {**environment, INSIDE: "1"}.items())
    (exchange / "script").write_text(exports + script)
    (exchange / "init").write_text(SECOND_INIT.format(seconds=int(seconds) + 30))
    initramfs = exchange / "initramfs"
    initramfs.write_bytes(initial_files())
    status = exchange / "status"
    status.unlink(missing_ok=True)
    with open(exchange / "console", "wb") as console:
        machine = subprocess.Popen(
            command(exchange, initramfs), stdin=subprocess.DEVNULL, stdout=console, stderr=console, cwd="/"
        )
        try:
            machine.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            machine.kill()
            machine.wait()
    return int(status.read_text()) if status.exists() else None


def command(exchange: Path, initramfs: Path, *, memory: str = MEMORY, network: str = "") -> list[str]:
    """QEMU's command line, always emulated: KVM inside another virtual machine is too often broken.

    network: a -netdev whose id is `net`; empty is none.
    """
    # Without a ROM to boot from, which is a package of its own.
    card = ["-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="] if network else []
    share = "local,security_model=none,multidevs=remap"
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
        "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
        "-smp", str(CPUS), "-m", memory, *card,
        "-kernel", str(cache() / "vmlinuz"), "-initrd", str(initramfs),
        "-append", "console=ttyS0 panic=-1 cgroup_no_v1=all psi=1",
        "-virtfs", f"{share},path=/,mount_tag=machine,readonly=on",
        "-virtfs", f"{share},path={exchange},mount_tag=exchange",
    ]  # fmt: skip


def initial_files() -> bytes:
    """The guest's first file system: a static busybox, modules for 9p and overlay, and the init above."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    entries = [
        archived("bin", stat.S_IFDIR | 0o755),
        archived("dev", stat.S_IFDIR | 0o755),
        archived("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
        archived("modules", stat.S_IFDIR | 0o755),
        archived("bin/busybox", stat.S_IFREG | 0o755, Path(busybox).read_bytes()),
        archived("init", stat.S_IFREG | 0o755, INIT.encode()),
    ]
    modules = [
        archived(f"modules/{path.name}", stat.S_IFREG | 0o644, path.read_bytes())
        for path in sorted((cache() / "modules").iterdir())
    ]
    return b"".join((*entries, *modules, archived("TRAILER!!!", 0)))


def archived(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    """One entry of a cpio archive, format newc. Source: Documentation/driver-api/early-userspace/buffer-format.rst."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
