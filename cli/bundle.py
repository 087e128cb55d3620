"""What may go into a support bundle: secrets are taken out of texts and objects before anything is written. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

REMOVED: Final = "(removed)"

_KEY: Final = re.compile(
    r"(?i)pass(?:word|wd|phrase)?$|secret|token(?!_file|_seconds)|credential|api[-_]?key|private[-_]?key|authorization|cookie"
)
"""Names of settings and fields whose value is never written."""

_PATTERNS: Final = (
    # PEM of keys, before anything else cuts it into pieces.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REMOVED),
    # Tokens of service accounts and of most others: three parts of base64url, the first of which begins with {"
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {REMOVED}"),
    (re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?)[^\s\"',}]+(?:\s+[^\s\"',}]+)?"), rf"\1{REMOVED}"),
    (re.compile(r"://[^/\s:@\"']+:[^/\s@\"']+@"), f"://{REMOVED}@"),
    (
        re.compile(
            r"(?i)([\w.-]*(?:password|passwd|passphrase|secret|token|api[-_]?key|private[-_]?key|credential)s?"
            r"[\"']?\s*[:=]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',}\]]+)"
        ),
        rf"\1{REMOVED}",
    ),
)
_ANNOTATIONS: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
_OF_CONTAINERS: Final = ("env", "envFrom", "command", "args")


def redact(text: str) -> str:
    """The text without what looks like a secret. Rather too much is taken out than too little."""
    for pattern, put in _PATTERNS:
        text = pattern.sub(put, text)
    return text


def cleaned(value: Any, *, ours: bool = False) -> Any:
    """A copy of a Kubernetes object, or a part of one, without what may hold secrets.

    Environment, command and arguments of containers go, but for `ours` commands and arguments, which hold none; so do
    values of fields with the name of a secret, and the copy of the manifest that kubectl leaves in an annotation.
    """
    if isinstance(value, Mapping):
        return {key: _field(key, part, ours=ours) for key, part in value.items() if key != "managedFields"}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [cleaned(part, ours=ours) for part in value]
    return redact(value) if isinstance(value, str) else value


def _field(key: str, value: Any, *, ours: bool) -> Any:
    if key in _ANNOTATIONS:
        return REMOVED
    if key in ("env", "envFrom") or (key in _OF_CONTAINERS and not ours):
        return REMOVED if value else value
    if _KEY.search(key) and isinstance(value, str):
        return REMOVED
    return cleaned(value, ours=ours)
