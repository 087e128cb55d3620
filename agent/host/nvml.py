"""GPUs through NVML and its official binding (extra `gpu`): use, memory, temperature, errors, processes by pod.

Whatever a card does not tell is None. A card that fails as a whole (lost, fallen off the bus) is left out and counted;
a driver that is gone is tried again after a while. NVML says nothing of free blocks: only where a card is cut into
MIG devices, whose memories are apart, is the largest free one known to be the largest block. Calls may block: for a
`Source` only. Source: NVML API reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from agent.gpu import Gpu, GpuProcess
from agent.host.podof import uid_of

T = TypeVar("T")

AGAIN_SECONDS: Final = 60.0
_MOST_DEVICES: Final = 256


class NvmlReader:
    """Reads all GPUs. `proc_root` is where processes are looked up. One thread uses it.

    `why_not` says why there are none now; `lost` counts cards that could not be read.
    """

    def __init__(self, proc_root: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc_root
        self._clock = clock
        self._nvml: Any = None
        self._again_at = clock()
        self.why_not: str | None = "NVML was not asked yet"
        self.lost = 0
        self._last_error = ""

    def read(self) -> tuple[Gpu, ...] | None:
        """All cards that can be read; None, with `why_not`, where there is no NVML."""
        if self._nvml is None and not self._open():
            return None
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            self.why_not = f"NVML does not answer: {error}"
            self.close()
            return None
        self.why_not = None
        found = [self._gpu(index) for index in range(min(count, _MOST_DEVICES))]
        cards = tuple(gpu for gpu in found if gpu is not None)
        self.lost += len(found) - len(cards)
        if found and not cards:
            self.why_not = f"none of {len(found)} cards answers: {self._last_error}"
            self.close()
            return None
        return cards

    def close(self) -> None:
        """Let go of the driver; the next reading tries anew, after a while."""
        nvml, self._nvml = self._nvml, None
        self._again_at = self._clock() + AGAIN_SECONDS
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                # It was not up any more, which is what is wanted.
                return

    def _open(self) -> bool:
        if self._clock() < self._again_at:
            return False
        self._again_at = self._clock() + AGAIN_SECONDS
        try:
            import pynvml
        except ImportError:
            self.why_not = "the NVML binding is not installed (extra `gpu`)"
            return False
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.why_not = f"no NVIDIA driver: {error}"
            return False
        self._nvml = pynvml
        return True

    def _gpu(self, index: int) -> Gpu | None:
        """One card; None when it is lost."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            total, used = self._memory(handle)
            return Gpu(
                index=index,
                uuid=uuid,
                name=self._told(lambda: str(nvml.nvmlDeviceGetName(handle))) or "",
                utilisation_percent=self._told(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
                memory_used_bytes=used,
                memory_total_bytes=total,
                free_block_bytes=self._free_block(handle),
                temperature_celsius=self._told(
                    lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
                ),
                errors=self._told(
                    lambda: int(
                        nvml.nvmlDeviceGetTotalEccErrors(
                            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                        )
                    )
                ),
                processes=self._processes(handle),
            )
        except nvml.NVMLError as error:
            self._last_error = str(error)
            return None
        except UnicodeDecodeError as error:
            self._last_error = f"its UUID is no text: {error}"
            return None

    def _told(self, ask: Callable[[], T]) -> T | None:
        """What the card tells; None where it cannot. Raises NVMLError when the card is lost."""
        nvml = self._nvml
        try:
            return ask()
        except nvml.NVMLError as error:
            if error.value in {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED}:
                raise
            return None
        except UnicodeDecodeError:
            return None

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        """(total, used) bytes; used without what the driver keeps for itself, where it says so."""
        nvml = self._nvml
        told = self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        told = told or self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return (int(told.total), int(told.used)) if told is not None else (None, None)

    def _free_block(self, handle: Any) -> int | None:
        """The most free memory of any MIG device; None for a card that is not cut up."""
        nvml = self._nvml
        mode = self._told(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        if mode != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        most = self._told(lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
        free = [self._told(partial(self._mig_free, handle, index)) for index in range(most)]
        return max((block for block in free if block is not None), default=None)

    def _mig_free(self, handle: Any, index: int) -> int:
        device = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        return int(self._nvml.nvmlDeviceGetMemoryInfo(device).free)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Processes that compute or draw, each once; one that does both is listed twice by NVML."""
        nvml = self._nvml
        memory: dict[int, int | None] = {}
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            for process in self._told(partial(ask, handle)) or ():
                known, used = memory.get(process.pid), process.usedGpuMemory
                memory[process.pid] = used if known is None else max(known, used or 0)
        return tuple(
            GpuProcess(pid=pid, memory_bytes=used, uid=uid_of(self._proc, pid)) for pid, used in sorted(memory.items())
        )
