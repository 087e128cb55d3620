"""An image archive as a bundle that runc or crun runs: layers unpacked, a config.json that isolates and limits."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import tarfile
from pathlib import Path

WHITEOUT = ".wh."


class Archive:
    """An OCI archive. `config` is what the image says about how it is run."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path)  # noqa: SIM115 - closed by `close`
        (self.manifest_entry,) = self._json("index.json")["manifests"]
        self._manifest = self._json(self._blob(self.manifest_entry["digest"]))
        whole = self._json(self._blob(self._manifest["config"]["digest"]))
        self.created = whole["created"]
        self.config = whole["config"]

    @property
    def digest(self) -> str:
        """What a registry would know the image by."""
        return self.manifest_entry["digest"]

    def close(self) -> None:
        """Close the file."""
        self._tar.close()

    def unpack(self, root: Path) -> None:
        """All layers, one over the other."""
        root.mkdir()
        for layer in self._manifest["layers"]:
            with tarfile.open(fileobj=self._tar.extractfile(self._blob(layer["digest"])), mode="r|*") as tar:
                for entry in tar:
                    directory, name = posixpath.split(entry.name)
                    if name.startswith(WHITEOUT):
                        gone = root / directory / name.removeprefix(WHITEOUT)
                        shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink()
                    else:
                        tar.extract(entry, root, filter="fully_trusted")

    def _blob(self, digest: str) -> str:
        return "blobs/" + digest.replace(":", "/")

    def _json(self, name: str):
        return json.load(self._tar.extractfile(name))


def bundle(archive: Archive, directory: Path, args: list[str], *, shared: Path | None = None) -> None:
    """`directory`/config.json for a run of `args` in `directory`/rootfs: nothing may be written but /tmp and `shared`.

    A network of its own without interfaces, no capabilities, cgroups of its own. `shared` has the same path inside.
    """
    uid, _, gid = (archive.config.get("User") or "0:0").partition(":")
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "size=65536k"]},
    ]
    if shared is not None:
        os.chown(shared, int(uid), int(gid or uid))
        mounts.append({"destination": str(shared), "source": str(shared), "options": ["rbind", "rw"]})
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": True},
        "process": {
            "user": {"uid": int(uid), "gid": int(gid or uid)},
            "args": args,
            "env": archive.config["Env"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {},
        },
        "mounts": mounts,
        "linux": {
            "cgroupsPath": f"/slacktide-{directory.name}",
            "namespaces": [{"type": name} for name in ("pid", "mount", "ipc", "uts", "network")],
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
