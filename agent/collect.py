"""Settings of the slow collectors: hardware counters and GPUs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slacktide.settings import Settings


class CollectSettings(Settings, frozen=True):
    """What is read beside the cgroups, on threads of its own. What a node lacks is told and left alone."""

    perf: Annotated[bool, Meta(description="count cycles per instruction of LS pods where the hardware can")] = True
    perf_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="from the begin of one collection of hardware counters to the next")
    ] = 30.0
    perf_window_seconds: Annotated[
        float, Meta(ge=0.1, le=600, description="length of a collection; counters are open only that long")
    ] = 10.0
    perf_pods: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="LS pods counted in one collection; more take turns",
            extra={"reloadable": True},
        ),
    ] = 32
    perf_descriptors: Annotated[
        int,
        Meta(
            ge=2,
            le=65_536,
            description="descriptors that counters may take; a pod needs two for each CPU of the node",
            extra={"reloadable": True},
        ),
    ] = 4096
    gpu: Annotated[bool, Meta(description="read GPUs through NVML where there is a driver")] = True
    gpu_seconds: Annotated[float, Meta(ge=1, le=3600, description="period of a look at the GPUs")] = 10.0
    gpu_publish: Annotated[
        bool, Meta(description="write what GPUs do into the node annotation slacktide.io/gpus, for the scheduler")
    ] = True
    gpu_publish_seconds: Annotated[
        float,
        Meta(
            ge=5,
            le=3600,
            description="shortest time between two such writes; what hardly changed is written five times as seldom",
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        """Rules that span fields. Raises ValueError."""
        if self.perf_window_seconds > self.perf_seconds:
            raise ValueError(
                f"perf_window_seconds {self.perf_window_seconds} is longer than perf_seconds {self.perf_seconds}"
            )
