"""GPUs of the node as plain values; read through NVML by `agent.host.nvml`. What a card does not tell is None.

Source: NVIDIA NVML API reference.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process on a GPU. `uid` is its pod's, None when it belongs to none."""

    pid: int
    memory_bytes: int | None
    uid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `utilisation_percent` is of the last sample period, `free_block_bytes` the largest free block."""

    index: int
    uuid: str
    name: str
    utilisation_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    free_block_bytes: int | None = None
    temperature_celsius: int | None = None
    errors: int | None = None
    """Uncorrected ECC errors since the driver was loaded."""
    processes: tuple[GpuProcess, ...] = ()
