"""Prints the certificates that a cluster needs, for those who install without helm.

Usage: python deploy/certificates.py [--namespace NAME] [--days N] | kubectl apply -f -

One authority, whose key is thrown away, signs a certificate for each component that serves: secrets
slacktide-COMPONENT-tls, and the authority as ConfigMap slacktide-ca. Run it again to renew all of them. Needs
openssl 3.
"""

from __future__ import annotations

import argparse
import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

COMPONENTS: Final = ("predictor", "extender", "agent")

_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_AUTHORITY: Final = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
_SERVER: Final = ("basicConstraints=critical,CA:FALSE", "extendedKeyUsage=serverAuth")


def names(component: str, namespace: str) -> list[str]:
    """Names under which a component is reached."""
    name = f"slacktide-{component}"
    return [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]


def objects(folder: Path, namespace: str, days: int) -> list[dict[str, Any]]:
    """The secrets and the ConfigMap, made with files in `folder`. Raises CalledProcessError."""
    _request(folder, "ca", "slacktide", _AUTHORITY, days)
    authority = (folder / "ca.crt").read_bytes()
    made = [_object("ConfigMap", "slacktide-ca", namespace, data={"ca.crt": authority.decode()})]
    for component in COMPONENTS:
        dns = ",".join(f"DNS:{name}" for name in names(component, namespace))
        extensions = (*_SERVER, f"subjectAltName={dns}")
        signer = ("-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"))
        _request(folder, component, f"slacktide-{component}", extensions, days, *signer)
        parts = {
            "ca.crt": authority,
            **{f"tls.{end}": (folder / f"{component}.{end}").read_bytes() for end in ("crt", "key")},
        }
        data = {key: base64.b64encode(value).decode() for key, value in parts.items()}
        made.append(_object("Secret", f"slacktide-{component}-tls", namespace, type="kubernetes.io/tls", data=data))
    return made


def _request(folder: Path, name: str, subject: str, extensions: tuple[str, ...], days: int, *more: str) -> None:
    files = ("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt"))
    added = [part for extension in extensions for part in ("-addext", extension)]
    command = ["openssl", "req", "-x509", *_CURVE, "-days", str(days), "-subj", f"/CN={subject}", *files, *added, *more]
    subprocess.run(command, check=True, capture_output=True)


def _object(kind: str, name: str, namespace: str, **more: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "slacktide", "app.kubernetes.io/instance": "slacktide"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


def main(argv: list[str]) -> int:
    """Print them as YAML."""
    parser = argparse.ArgumentParser(prog="python deploy/certificates.py", description=__doc__)
    parser.add_argument("--namespace", default="slacktide-system", help="where Slacktide runs (%(default)s)")
    parser.add_argument("--days", type=int, default=3650, help="how long they are valid (%(default)s)")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = objects(Path(folder), asked.namespace, asked.days)
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", b"") or b""
            sys.stderr.write(f"certificates: {error}\n{detail.decode(errors='replace')}")
            return 1
    yaml.safe_dump_all(made, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
