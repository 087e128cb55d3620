"""`python -m tests.deploy build | up`: helm and kustomize, or a cluster with Slacktide installed by its chart."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from tests.cluster import tools as cluster_tools
from tests.cluster.harness import StartFailed
from tests.cluster.local_node import why_not
from tests.cluster.tools import ToolsMissing
from tests.deploy import tools
from tests.deploy.chart import Helm, Refused
from tests.deploy.local import local_cluster

_READY = """\
A cluster with one node runs here, with Slacktide installed by its chart. In another shell:

  export KUBECONFIG={kubeconfig} PATH={commands}:$PATH
  kubectl get pods -A                                    # or any other client
  kubectl describe node local                            # what is sold: kubernetes.io/batch-cpu, batch-memory
  kubectl slacktide top                                  # or explain node local, doctor --cluster, ...
  {helm} list -n slacktide-system

Addresses of pods are this machine's own, which an API server passes nothing on to: `explain` has no records of agents
here, and `kubectl logs` is {logs}/UID/CONTAINER.log. Ctrl-C ends it and leaves nothing behind."""


def main() -> int:
    """Build, or run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__)
    parser.add_argument("action", choices=["build", "up"])
    parser.add_argument("names", nargs="*", help=f"what to build: {', '.join(tools.RECIPES)}; nothing is all")
    chosen = parser.parse_args()
    unknown = sorted({*chosen.names} - {*tools.RECIPES})
    if unknown:
        parser.error(f"cannot build {', '.join(unknown)}; known: {', '.join(tools.RECIPES)}")
    try:
        if chosen.action == "build":
            for name in chosen.names or tools.RECIPES:
                print(tools.build(name), flush=True)
        else:
            _up()
    except (ToolsMissing, StartFailed, Refused) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up() -> None:
    reason = why_not()
    if reason is not None:
        raise ToolsMissing(reason)

    def end(*_: object) -> NoReturn:
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    print("building what is not there yet (five minutes the first time) ...", flush=True)
    cluster_tools.build()
    helm = Helm(tools.build("helm3"))
    with tempfile.TemporaryDirectory(prefix="slacktide-cluster-") as directory:
        print("starting the control plane ...", flush=True)
        with local_cluster(Path(directory), helm) as local:
            print("helm install ...", flush=True)
            local.install()
            print(
                _READY.format(
                    kubeconfig=local.plane.kubeconfig(),
                    commands=Path(sys.executable).parent,
                    helm=helm.program,
                    logs=Path(directory, "pods"),
                ),
                flush=True,
            )
            signal.pause()


if __name__ == "__main__":
    sys.exit(main())
