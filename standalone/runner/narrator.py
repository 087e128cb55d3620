"""Turns what changed between two looks at the containers into events and counters."""

from __future__ import annotations

from collections.abc import Mapping

from slacktide import names
from slacktide.objects import Pod
from slacktide.observe import get_logger
from standalone.runner.api import Recorder
from standalone.runner.attempts import Attempt, ContainerId, Exit, Phase, PodUid
from standalone.runner.lifecycle import BackOff, progress
from standalone.runner.metrics import Metrics

log = get_logger("runner.narrator")


class Narrator:
    """Says each thing once. What was already so at the first look is not said: an earlier runner did."""

    def __init__(self, recorder: Recorder, metrics: Metrics, back_off: BackOff) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._back_off = back_off
        self._phases: dict[ContainerId, Phase] | None = None
        self._warned: set[tuple[PodUid, str]] = set()
        self._image_logged = False

    def look(self, attempts: tuple[Attempt, ...], pods: Mapping[PodUid, Pod]) -> None:
        """Compare with the last look and tell."""
        before = self._phases
        self._phases = {attempt.id: attempt.phase for attempt in attempts}
        self._warned = {(uid, what) for uid, what in self._warned if uid in pods}
        self._metrics.count(attempts)
        if before is None:
            return
        for attempt in attempts:
            if before.get(attempt.id) is attempt.phase:
                continue
            pod = pods.get(attempt.pod_uid)
            if attempt.exit is not None:
                self._ended(attempt, attempt.exit, pod)
            elif attempt.phase is Phase.RUNNING and pod is not None:
                self._recorder.record(pod, "Normal", "Started", f"Started container {attempt.container}")

    def starting(self, pod: Pod) -> None:
        """Warn once a pod of fields that this node ignores."""
        images = {one.image for one in (*pod.spec.containers, *pod.spec.init_containers)}
        foreign = sorted(images - {"", names.HOST_PROCESS_IMAGE})
        if foreign:
            said = f"images are ignored here, processes of this machine are run: {', '.join(foreign)}"
            if not self._image_logged:
                log.warning(said, pod=pod.metadata.name)
                self._image_logged = True
            self._warn_once(pod, "ImageIgnored", said)
        if pod.spec.volumes:
            volumes = ", ".join(str(volume.get("name", "?")) for volume in pod.spec.volumes)
            self._warn_once(pod, "VolumesIgnored", f"volumes are not mounted on a standalone node: {volumes}")

    def killing(self, pod: Pod | None, container: str, reason: str) -> None:
        """A container is being stopped."""
        if pod is not None and reason:
            self._recorder.record(pod, "Normal", "Killing", f"Stopping container {container}: {reason}")

    def failed(self, pod: Pod, container: str, reason: str, message: str) -> None:
        """A container could not be started."""
        self._metrics.starts.labels("failed").inc()
        self._recorder.record(pod, "Warning", "Failed", f"container {container}: {reason}: {message}")

    def rejected(self, pod: Pod, reason: str, message: str) -> None:
        """A pod was refused at the door."""
        self._recorder.record(pod, "Warning", reason, message)

    def _ended(self, attempt: Attempt, ended: Exit, pod: Pod | None) -> None:
        self._metrics.exits.labels(ended.status_reason).inc()
        self._metrics.lost_lines.inc(ended.lost_lines)
        log.info(
            "container ended",
            pod=f"{attempt.namespace}/{attempt.pod}",
            container=attempt.container,
            code=ended.code,
            reason=ended.status_reason,
        )
        if pod is None:
            return
        if ended.status_reason == "OOMKilled":
            self._recorder.record(
                pod, "Warning", "OOMKilled", f"container {attempt.container} was killed: out of memory"
            )
        elif ended.reason:
            self._recorder.record(pod, "Warning", "Failed", f"container {attempt.container}: {ended.message}")
        if ended.lost_lines:
            self._warn_once(
                pod, "LogLinesLost", f"container {attempt.container}: {ended.lost_lines} log lines could not be written"
            )
        delay = self._back_off.delay(self._back_off.crashes_after(attempt))
        again = any(one.name == attempt.container for one in progress(pod, {attempt.container: attempt}).wanted)
        if delay > 0 and again:
            said = f"Back-off {delay:g}s restarting failed container {attempt.container}"
            self._recorder.record(pod, "Warning", "BackOff", said)

    def _warn_once(self, pod: Pod, reason: str, message: str) -> None:
        key = (PodUid(pod.metadata.uid), reason)
        if key not in self._warned:
            self._warned.add(key)
            self._recorder.record(pod, "Warning", reason, message)
