"""Settings of the node agent; each group stands beside the code that it steers, save what belongs to the whole."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from agent.act.evictor import EvictorSettings
from agent.collect import CollectSettings
from agent.drill_settings import DrillSettings
from agent.drill_targets import DrillTargets
from agent.policy.batch_limits import BatchLimitsSettings
from agent.policy.burst import BurstSettings
from agent.policy.cache_bandwidth import CacheBandwidthSettings
from agent.policy.close import CloseSettings
from agent.policy.contention import ContentionSettings
from agent.policy.evict import EvictSettings
from agent.policy.io import IoSettings
from agent.policy.kill import KillSettings
from agent.policy.memory import MemorySettings
from agent.policy.pids import PidsSettings
from agent.policy.shortage import ShortageSettings
from agent.policy.spread import SpreadSettings
from agent.policy.suppress import SuppressSettings
from agent.policy.weight import WeightSettings
from slacktide.settings import ClusterSettings, DaemonSettings, ResourceNames, Settings

SILENT_TURNS: Final = 3.0
"""Turns that may be missed before anybody worries, where turns are long."""


class ReportSettings(Settings, frozen=True):
    """The stream of samples to the predictor, and the spool that bridges its absence."""

    window_seconds: Annotated[float, Meta(ge=1, le=600, description="length of a sample's window")] = 10.0
    spool_bytes: Annotated[
        int, Meta(ge=65_536, le=1 << 40, description="the spool drops its oldest samples beyond this")
    ] = 64 << 20
    spool_seconds: Annotated[
        float, Meta(ge=60, le=35 * 86_400, description="the spool drops samples that are older than this")
    ] = 7 * 86_400.0
    batch_samples: Annotated[int, Meta(ge=1, le=10_000, description="samples in one message")] = 100
    in_flight_samples: Annotated[int, Meta(ge=1, le=100_000, description="samples sent ahead of their receipt")] = 500
    ack_timeout_seconds: Annotated[
        float, Meta(ge=1, le=600, description="without a receipt for this long the stream is opened anew")
    ] = 30.0
    stream_seconds: Annotated[
        float, Meta(ge=10, le=86_400, description="deadline of one stream; another follows at once")
    ] = 3600.0
    keepalive_seconds: Annotated[float, Meta(ge=10, le=7200, description="an idle connection is pinged this often")] = (
        60.0
    )
    hold_seconds: Annotated[
        float,
        Meta(ge=1, le=35 * 86_400, description="of several predictors one that is silent for this long misses samples"),
    ] = 3600.0
    resolve_seconds: Annotated[
        float, Meta(ge=0.1, le=3600, description="predictors with a name are looked up this often")
    ] = 30.0
    ca_file: Annotated[
        str,
        Meta(description="PEM certificates that a predictor at HOST:PORT must be signed by; read again when changed"),
    ] = ""
    server_name: Annotated[
        str, Meta(description="name in the predictor's certificate; empty is the host as `predictor` has it")
    ] = ""
    token_file: Annotated[
        str, Meta(description="file with the token that says which node this is; read again when it changes")
    ] = ""
    certificate_file: Annotated[str, Meta(description="PEM client certificate, instead of a token")] = ""
    key_file: Annotated[str, Meta(description="PEM key of the client certificate")] = ""
    insecure: Annotated[bool, Meta(description="plaintext to a predictor at a loopback HOST:PORT")] = False
    backoff_seconds: Annotated[float, Meta(ge=0.05, le=60, description="first pause before a reconnect")] = 0.5
    backoff_max_seconds: Annotated[float, Meta(ge=0.1, le=600, description="longest pause before a reconnect")] = 15.0


class AgentSettings(DaemonSettings, frozen=True):
    """Everything the agent can be told."""

    cluster: ClusterSettings = ClusterSettings()
    node: Annotated[str, Meta(description="name of this node; empty is the host name")] = ""
    state_dir: Annotated[str, Meta(description="directory of journal and spool")] = "/var/lib/slacktide/agent"
    cgroup_root: Annotated[
        str, Meta(description="cgroup below which kubepods is looked for; empty is the whole mount")
    ] = ""
    proc_root: Annotated[str, Meta(description="where the host's /proc is mounted")] = "/proc"
    sys_root: Annotated[str, Meta(description="where the host's /sys is mounted")] = "/sys"
    predictor: Annotated[
        str,
        Meta(
            description="predictors, comma separated: unix:/path or HOST:PORT, each replica of a name with several "
            "addresses; empty reports nowhere and only spools"
        ),
    ] = ""
    resources: ResourceNames = ResourceNames()
    policies: Annotated[
        tuple[str, ...], Meta(description="policies in force, mildest first; an unknown name lists the known")
    ] = (
        *("batch_limits", "weight", "spread", "pids", "burst", "suppress", "contention", "cache_bandwidth"),
        *("memory", "io", "close", "evict", "kill"),
    )
    own_cgroup: Annotated[
        str,
        Meta(
            description="cgroup (slacktide-NAME) that the agent makes for itself; empty: it stays where it was started"
        ),
    ] = ""
    own_memory_bytes: Annotated[
        int, Meta(ge=64 << 20, le=1 << 36, description="bound on the memory of that cgroup")
    ] = 256 << 20
    observe_only: Annotated[bool, Meta(description="measure, report and say what would be done; write nothing")] = False
    turn_seconds: Annotated[float, Meta(ge=0.1, le=60, description="period of the full look at the node")] = 1.0
    beat_seconds: Annotated[
        float, Meta(ge=0.01, le=10, description="period of the short look that may cut BE at once")
    ] = 0.05
    busy_beat_seconds: Annotated[
        float,
        Meta(
            ge=0.01,
            le=10,
            description="period of the short look while BE and LS share busy CPUs, where it is the shorter one",
            extra={"reloadable": True},
        ),
    ] = 0.02
    pressure_window_seconds: Annotated[
        float, Meta(ge=0.02, le=10, description="LS pressure is judged over this long")
    ] = 0.25
    pressure_threads: Annotated[
        int, Meta(ge=1, le=10_000, description="LS threads whose run delay is read in one beat")
    ] = 64
    watchdog_seconds: Annotated[
        float, Meta(ge=1, le=600, description="a silent control loop for this long lifts BE's hard limits")
    ] = 5.0
    restore_on_stop: Annotated[bool, Meta(description="give every knob its original back when stopped")] = True
    weight: WeightSettings = WeightSettings()
    spread: SpreadSettings = SpreadSettings()
    pids: PidsSettings = PidsSettings()
    burst: BurstSettings = BurstSettings()
    memory: MemorySettings = MemorySettings()
    io: IoSettings = IoSettings()
    collect: CollectSettings = CollectSettings()
    suppress: SuppressSettings = SuppressSettings()
    contention: ContentionSettings = ContentionSettings()
    shortage: ShortageSettings = ShortageSettings()
    batch_limits: BatchLimitsSettings = BatchLimitsSettings()
    cache_bandwidth: CacheBandwidthSettings = CacheBandwidthSettings()
    close: CloseSettings = CloseSettings()
    evict: EvictSettings = EvictSettings()
    kill: KillSettings = KillSettings()
    evictor: EvictorSettings = EvictorSettings()
    drill: DrillSettings = DrillSettings()
    drill_targets: DrillTargets = DrillTargets()
    report: ReportSettings = ReportSettings()

    @property
    def watchdog_limit_seconds(self) -> float:
        """Silence of the control loop after which the watchdog acts."""
        return max(self.watchdog_seconds, SILENT_TURNS * self.turn_seconds)

    def __post_init__(self) -> None:
        """Rules that span fields. Raises ValueError."""
        if self.beat_seconds > self.turn_seconds:
            raise ValueError(f"beat_seconds {self.beat_seconds} is longer than turn_seconds {self.turn_seconds}")
        if self.suppress.engage_percent > self.suppress.target_percent:
            raise ValueError(
                f"suppress.engage_percent {self.suppress.engage_percent} is above "
                f"suppress.target_percent {self.suppress.target_percent}"
            )
