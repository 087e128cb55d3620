"""The answer of prioritize as JSON: thousands of small objects that differ in a name and few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from scheduler_plugins.framework.snapshot import Ints


def encoded(names: Sequence[str], scores: Ints) -> bytes:
    """JSON of a HostPriorityList, as `wire.encode` writes it but equal scores together. Scores are 0 or more.

    One object a node costs more than all judging. Names of one score are written as a list of strings and the rest of
    each object is put between them; a quote inside a name is escaped, so what separates two names is unmistakable.
    """
    parts: list[bytes] = []
    for score in np.flatnonzero(np.bincount(scores)).tolist():
        of_score = [names[i] for i in np.flatnonzero(scores == score).tolist()]
        between = b'","Score":%d},{"Host":"' % score
        quoted = msgspec.json.encode(of_score)[2:-2].replace(b'","', between)
        parts += [b'{"Host":"', quoted, b'","Score":%d}' % score, b","]
    return b"".join([b"[", *parts[:-1], b"]"])
