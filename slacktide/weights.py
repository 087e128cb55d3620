"""The kubelet's rule from a CPU request to a weight: shares on cgroup v1, and from those the weight of v2.

Node runtimes convert differently, so a request is never inferred from a weight. Source: reference/kernel.md 2.2.
"""

from __future__ import annotations

from typing import Final

MIN_SHARES: Final = 2
MAX_SHARES: Final = 262_144


def shares_of(millis: int) -> int:
    """cpu.shares for a CPU request in millicores."""
    return max(MIN_SHARES, min(MAX_SHARES, millis * 1024 // 1000))


def kernel_weight(millis: int, *, v2: bool) -> int:
    """What the kubelet writes for a CPU request in millicores: cpu.weight on cgroup v2, cpu.shares on v1."""
    shares = shares_of(millis)
    return weight_of(shares) if v2 else shares


def weight_of(shares: int) -> int:
    """cpu.weight (v2) for cpu.shares (v1), by the linear map."""
    return 1 + (max(MIN_SHARES, min(MAX_SHARES, shares)) - MIN_SHARES) * 9999 // (MAX_SHARES - MIN_SHARES)
