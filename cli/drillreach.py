"""The way to the drills of an agent in a cluster: where it listens, whom to trust, and with which token.

The token is made for this one call: for drills alone, for minutes, and for an account that may drill. What the caller
itself may do in the cluster never leaves its own machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from cli.asking import said
from cli.drillfacts import needed
from cli.drills import OPTIONS
from cli.exits import REFUSED, USAGE, CommandError
from slacktide.cluster import PODS, Client
from slacktide.cluster.errors import Forbidden, NotFound
from slacktide.objects import Pod
from slacktide.transport import CertificateFiles, Connection, Pems, read_token, secure_connection

PORT: Final = 7444
SERVER_NAME: Final = "slacktide-agent"
AUDIENCE: Final = "slacktide-drill"
CA_CONFIG_MAP: Final = "slacktide-ca"
_LABELS: Final = "app.kubernetes.io/name=slacktide,app.kubernetes.io/component=agent"
_SHORTEST_SECONDS: Final = 600
"""The API server makes no token that ends sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a person may say about the way; what is empty is looked up in the cluster.

    `account` is NAMESPACE/NAME of the account whose token is made. `agent` is HOST:PORT.
    """

    namespace: str
    account: str
    agent: str = ""
    server_name: str = SERVER_NAME
    ca_file: str = ""
    token_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


def connect(client: Client, node: str, reach: Reach, seconds: float) -> Connection:
    """A connection to the agent of `node`, good for `seconds`. Raises CommandError, SettingsError, ClusterError."""
    target = reach.agent or agent_of(client, reach.namespace, node)
    files = CertificateFiles(reach.certificate_file, reach.key_file, reach.ca_file, "certificates")
    pems = files.load()
    if not reach.ca_file:
        pems = Pems(pems.certificate, pems.key, authority(client, reach.namespace))
    token = ""
    if reach.token_file:
        token = read_token(reach.token_file)
    elif not pems.certificate:
        token = token_of(client, reach.account, seconds)
    return secure_connection(target, reach.server_name, pems, token, OPTIONS)


def agent_of(client: Client, namespace: str, node: str) -> str:
    """Where the agent of a node serves drills. Raises CommandError when there is none."""
    selector = f"spec.nodeName={node}"
    with needed("to find the agent of the node"):
        pods = client.list(PODS, namespace=namespace, field_selector=selector, label_selector=_LABELS).items
    running = [pod for pod in pods if pod.status.pod_ip and pod.status.phase == "Running"]
    if not running:
        where = f"no agent runs on node {node!r} (namespace {namespace})"
        raise CommandError(
            f"{where}: see `kubectl -n {namespace} get pods -o wide`, or give --agent HOST:PORT", REFUSED
        )
    return _address(running[0])


def _address(pod: Pod) -> str:
    ip = pod.status.pod_ip
    return f"[{ip}]:{PORT}" if ":" in ip else f"{ip}:{PORT}"


def authority(client: Client, namespace: str) -> bytes:
    """The certificates that those of agents are signed by. Raises CommandError."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{CA_CONFIG_MAP}"
    with needed("to know whose certificates to trust; --ca-file does without"):
        try:
            text = json.loads(client.request("GET", path)).get("data", {}).get("ca.crt", "")
        except NotFound:
            text = ""
    if not text:
        what = f"there is no ca.crt in the ConfigMap {namespace}/{CA_CONFIG_MAP}"
        raise CommandError(f"{what}: is Slacktide installed there? Else give --ca-file", REFUSED)
    return str(text).encode()


def token_of(client: Client, account: str, seconds: float) -> str:
    """A token for drills, of an account, that lives as long as the drill may. Raises CommandError."""
    namespace, slash, name = account.partition("/")
    if not (slash and namespace and name):
        raise CommandError(f"--account {account!r}: expected NAMESPACE/NAME", USAGE)
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/serviceaccounts/{quote(name, safe='')}/token"
    spec = {"audiences": [AUDIENCE], "expirationSeconds": max(_SHORTEST_SECONDS, int(seconds) + 60)}
    try:
        answer = json.loads(client.request("POST", path, body=json.dumps({"spec": spec}).encode()))
    except NotFound:
        raise CommandError(f"there is no account {account}: say which one may drill with --account", REFUSED) from None
    except Forbidden as error:
        raise CommandError(
            f"you may not make tokens of {account}, and so may not drill: {said(error)}", REFUSED
        ) from None
    return str(answer["status"]["token"])
