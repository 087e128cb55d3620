"""What scheduler and extender say to each other, as JSON; client and server read and write these.

The Go types carry no JSON names, so fields are named as in Go and every field is written, empty ones as null. Go peers
read names without regard to case, and older ones write them in lower case: `decode` accepts that too. Nodes travel as
they came: an answer gives back the very bytes of a node, so nothing that we do not know of it is lost.
Source: kubernetes staging/src/k8s.io/kube-scheduler/extender/v1/types.go.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec

from slacktide.errors import SlacktideError
from slacktide.objects import Pod, View

T = TypeVar("T")

CONTENT_TYPE: Final = "application/json"
MAX_SCORE: Final = 10
"""Highest score of an extender by convention; peers clamp nothing."""


class WireError(SlacktideError):
    """A body that is not the JSON it should be; the text says where."""


class Message(msgspec.Struct, rename="pascal", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is sent: names as in Go, every field written. `decode` drops fields that it does not know."""


class NodeList(View, frozen=True):
    """Nodes as the API writes them, each in the bytes in which it came; see `node_name`."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(Message, frozen=True):
    """Question of filter and prioritize. Which of `nodes` and `node_names` is given says if nodes are cached there."""

    pod: Pod | None = None
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class ExtenderFilterResult(Message, frozen=True):
    """Answer of filter: nodes that are left, in the form of the question, and a reason for each of the others.

    A node in both maps is unresolvable. `error` that is not empty makes the call a failed one.
    """

    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str | None = ""


class HostPriority(Message, frozen=True):
    """Score of one node; prioritize answers a list of these."""

    host: str
    score: int


class ExtenderBindingArgs(Message, frozen=True):
    """Order to bind a pod to a node."""

    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = ""


class ExtenderBindingResult(Message, frozen=True):
    """Answer of bind; empty is success."""

    error: str | None = ""


class MetaPod(Message, frozen=True):
    """A victim by its uid."""

    uid: str = msgspec.field(default="", name="UID")


class WireVictims(Message, frozen=True):
    """Pods to be removed from a node, whole, and how many of them no disruption budget allows."""

    pods: list[Pod] | None = None
    pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class WireMetaVictims(Message, frozen=True):
    """The same by uid."""

    pods: list[MetaPod] | None = None
    pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class ExtenderPreemptionArgs(Message, frozen=True):
    """Question of preempt, by node name: whole victims, or their uids for an extender that caches nodes."""

    pod: Pod | None = None
    node_name_to_victims: dict[str, WireVictims] | None = None
    node_name_to_meta_victims: dict[str, WireMetaVictims] | None = None


class ExtenderPreemptionResult(Message, frozen=True):
    """Answer of preempt: the nodes that are left and their victims, always by uid."""

    node_name_to_meta_victims: dict[str, WireMetaVictims] | None = None


class _Named(View, frozen=True):
    name: str = ""


class _Object(View, frozen=True):
    metadata: _Named = _Named()


def node_name(raw: msgspec.Raw) -> str:
    """metadata.name of a node that is still JSON; empty when it has none. Raises WireError for one that is no node."""
    return decode(bytes(raw), _Object).metadata.name


def encode(message: Message | list[HostPriority]) -> bytes:
    """The JSON of a message."""
    return msgspec.json.encode(message)


def decode(body: bytes, kind: type[T]) -> T:
    """Read a message. Names may differ in case and unknown ones are dropped, as Go does it.

    Raises WireError for what is not JSON, or has a value of the wrong type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        pass  # An unknown name, or one in another case: the slow way below tells it from a wrong value.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the body is not JSON that can be read: {error}") from error
    try:
        renamed = _renamed(msgspec.json.decode(body), kind)
        return msgspec.json.decode(msgspec.json.encode(renamed), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"the body does not have the form of {_title(kind)}: {error}") from error


def _renamed(value: Any, kind: Any) -> Any:
    """`value` with the names of messages in the case in which we write them; the last of equal names counts."""
    if not _has_names(kind):
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return _renamed(value, next(one for one in arguments if one is not types.NoneType))
    if isinstance(value, list) and origin is list:
        return [_renamed(one, arguments[0]) for one in value]
    if isinstance(value, dict) and origin is dict:
        return {key: _renamed(one, arguments[1]) for key, one in value.items()}
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Message):
        known = {field.encode_name.lower(): field for field in msgspec.structs.fields(kind)}
        pairs = ((known.get(str(key).lower()), one) for key, one in value.items())
        return {field.encode_name: _renamed(one, field.type) for field, one in pairs if field is not None}
    return value


@functools.cache
def _has_names(kind: Any) -> bool:
    """Whether a value of this type can hold names of messages; thousands of node names are not worth a look each."""
    if isinstance(kind, type) and issubclass(kind, Message):
        return True
    return any(_has_names(one) for one in get_args(kind))


def _title(kind: Any) -> str:
    arguments = get_args(kind)
    return f"a list of {_title(arguments[0])}" if arguments else str(kind.__name__)
