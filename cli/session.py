"""A foreground `run`: from the created pod to the exit code. Output, waiting, Ctrl-C, lost connections.

One thread (the caller's) decides; an informer brings news of the pod, two followers bring its output. What is
known of the pod is always its last state, so an API server that goes away and comes back changes nothing.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cli import podview
from cli.exits import BROKEN_PIPE, RUN_FAILED, SIGNAL, TIMED_OUT
from cli.follow import Follower
from cli.podspec import CONTAINER
from cli.streams import JsonLines, RawBytes
from slacktide.cluster import PODS, Informer
from slacktide.cluster.errors import ClusterError, NotFound
from slacktide.objects import Pod

if TYPE_CHECKING:
    from slacktide.cluster import Client

QUIET_SECONDS: Final = 2.0
"""A pod that is placed sooner than this is not talked about."""
DRAIN_SECONDS: Final = 10.0
"""How long the end of a pod's output is waited for after the pod itself has ended."""
SILENCE_SECONDS: Final = 3.0
"""A connection away for less than this is not talked about either."""

_POLL_SECONDS: Final = 0.1
_STOPPING: Final = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "the terminal has gone"}


class StopSignals:
    """Counts the signals that ask for an end; remembers the first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Handle SIGINT, SIGTERM and SIGHUP until `restore`, or the process ends."""
        for signum in _STOPPING:
            self._before[signum] = signal.signal(signum, self.note)

    def restore(self) -> None:
        """Give the signals back to who had them."""
        while self._before:
            signal.signal(*self._before.popitem())

    def note(self, signum: int, _frame: object = None) -> None:
        """Count one signal."""
        self.count += 1
        self.first = self.first or signal.Signals(signum)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended: exit code of the command, what to say about it, the pod as last seen."""

    code: int
    text: str
    pod: Pod


class Session:
    """Follows one pod to its end. `say` writes remarks for the person at the terminal."""

    def __init__(
        self,
        client: Client,
        pod: Pod,
        sinks: dict[str, RawBytes | JsonLines],
        stop: StopSignals,
        say: Callable[[str], None],
        *,
        start_timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pod = pod
        self._sinks = sinks
        self._stop = stop
        self._say = say
        self._start_timeout = start_timeout
        self._clock = clock
        self._news: queue.SimpleQueue[Pod | None] = queue.SimpleQueue()
        self._gone = False
        self._seen = False
        self._followers: list[Follower] = []
        self._asked = 0
        self._asked_because = ""
        self._said = ""
        self._lost = False
        self._next_question = clock() + SILENCE_SECONDS

    def run(self) -> Outcome:
        """Wait for the end of the pod."""
        meta = self._pod.metadata
        informer = Informer(
            self._client,
            PODS,
            namespace=meta.namespace,
            field_selector=f"metadata.name={meta.name}",
            on_add=self._heard,
            on_update=lambda _, new: self._heard(new),
            on_delete=self._lost_pod,
            name="run",
        )
        informer.start()
        started = self._clock()
        try:
            while not self._over():
                synced = informer.synced
                self._take_news()
                # Deleted before the informer listed for the first time: no news will ever tell.
                self._gone = self._gone or (synced and not self._seen)
                self._follow()
                self._obey(self._clock() - started)
                self._explain(self._clock() - started, informer.age_seconds())
            return self._conclude()
        finally:
            informer.stop()
            for follower in self._followers:
                follower.stop()

    def _heard(self, pod: Pod) -> None:
        if pod.metadata.uid == self._pod.metadata.uid:
            self._news.put(pod)

    def _lost_pod(self, pod: Pod) -> None:
        if pod.metadata.uid == self._pod.metadata.uid:
            self._news.put(pod)
            self._news.put(None)

    def _take_news(self) -> None:
        try:
            news = self._news.get(timeout=_POLL_SECONDS)
            while True:
                if news is None:
                    self._gone = True
                else:
                    self._pod, self._seen = news, True
                news = self._news.get_nowait()
        except queue.Empty:
            return

    def _over(self) -> bool:
        return self._gone or podview.ending(self._pod) is not None

    def _follow(self) -> None:
        if self._followers or not podview.has_output(self._pod):
            return
        meta = self._pod.metadata
        for stream, name in (("Stdout", "stdout"), ("Stderr", "stderr")):
            follower = Follower(
                self._client,
                meta.namespace,
                meta.name,
                self._sinks[name].write,
                stream="Stdout" if stream == "Stdout" else "Stderr",
                container=CONTAINER,
            )
            follower.start()
            self._followers.append(follower)

    def _obey(self, waited: float) -> None:
        """Pass a wish to stop on to the pod; asked again until the API has heard it."""
        wanted, why = min(self._stop.count, 2), ""
        if self._stop.first is not None:
            why = _STOPPING[self._stop.first]
        if any(isinstance(follower.error, BrokenPipeError) for follower in self._followers):
            wanted, why = max(wanted, 1), why or "nobody reads its output any more"
        late = self._start_timeout is not None and waited > self._start_timeout
        if late and self._pod.status.phase in {"", "Pending"}:
            wanted, why = max(wanted, 1), why or f"it did not start within {self._start_timeout:g} s"
        if wanted <= self._asked:
            return
        try:
            meta = self._pod.metadata
            grace = None if wanted == 1 else 0
            self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_period_seconds=grace)
        except NotFound:
            self._gone = True
        except ClusterError as error:
            self._remark(f"cannot stop {meta.name} yet: {error}")
            return
        self._asked, self._asked_because = wanted, self._asked_because or why
        hint = " (again: kill at once)" if wanted == 1 and self._stop.count else ""
        self._say(f"{'stopping' if wanted == 1 else 'killing'} {meta.name}: {why}{hint}")

    def _explain(self, waited: float, silence: float) -> None:
        self._mind_connection(silence)
        if waited < QUIET_SECONDS or self._asked or self._lost or self._pod.status.phase not in {"", "Pending"}:
            return
        why = podview.waiting_for(self._pod) or podview.reason(self._pod)
        self._remark(f"{self._pod.metadata.name} waits: {why or 'nobody has placed it yet'}")

    def _mind_connection(self, silence: float) -> None:
        """Say when the API server is away and when it is back. A quiet pod is silent too, hence the question."""
        fine = silence <= SILENCE_SECONDS and not self._lost
        if fine or self._clock() < self._next_question:
            return
        self._next_question = self._clock() + SILENCE_SECONDS
        lost = not self._reachable()
        if lost != self._lost:
            self._remark(
                "the API server does not answer; the pod goes on, and so does the wait"
                if lost
                else "the API server is back"
            )
        self._lost = lost

    def _reachable(self) -> bool:
        try:
            self._client.version()
        except ClusterError:
            return False
        return True

    def _remark(self, text: str) -> None:
        if text != self._said:
            self._say(text)
            self._said = text

    def _conclude(self) -> Outcome:
        self._follow()
        deadline = self._clock() + DRAIN_SECONDS
        complete = [follower.join(max(0.0, deadline - self._clock())) for follower in self._followers]
        for sink in self._sinks.values():
            sink.close()
        if not all(complete) and not self._gone:
            self._say(f"the end of the output is missing: it did not come within {DRAIN_SECONDS:g} s")
        return self._outcome()

    def _outcome(self) -> Outcome:
        end = podview.ending(self._pod)
        name = self._pod.metadata.name
        if self._asked:
            return Outcome(self._stopped_code(), f"{name} was stopped: {self._asked_because}", self._pod)
        if end is None or end.exit_code is None:
            what = "was deleted" if end is None else f"did not run to its end: {end.reason}"
            detail = f": {end.message}" if end and end.message else ""
            return Outcome(RUN_FAILED, f"{name} {what}{detail}", self._pod)
        plain = not end.message and end.reason in {"", "Error", "Completed"}
        if end.exit_code == 0 or plain:
            return Outcome(end.exit_code, "", self._pod)
        detail = f": {end.message}" if end.message else ""
        return Outcome(end.exit_code, f"{name} failed: {end.reason}{detail}", self._pod)

    def _stopped_code(self) -> int:
        if self._stop.first is not None:
            return SIGNAL + self._stop.first
        if any(isinstance(follower.error, BrokenPipeError) for follower in self._followers):
            return BROKEN_PIPE
        return TIMED_OUT
