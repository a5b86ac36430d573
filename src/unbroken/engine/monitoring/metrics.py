"""The numbers of one run: their names, what each means, and how events change them.

The names without a prefix are gauges of which each has the meaning that docs/monitoring.md gives it; those of
our own begin with `unbroken_`. All carry the label `job`. Counters begin at 0 in the moment in which they can be
read, so that the first failure already is an increase.

Invariant: nothing here is registered anywhere but in the registry of this object.

Not promised: history. A number is what is known now; Prometheus, or TensorBoard, remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from unbroken.engine.monitoring.stock import Stock
from unbroken.engine.observer import Saved
from unbroken.engine.recovery import Tier
from unbroken.engine.report import ResumeReport
from unbroken.engine.schedule import Every
from unbroken.errors import ConfigError, installing
from unbroken.types import Fidelity

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

MB = 10**6
GB = 10**9
NO_LIMIT_SECONDS = 3600.0
"""How old a checkpoint may become where the interval says nothing of time."""

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Bounds of what takes time, three steps to each power of ten and one more."""

GAUGES: Mapping[str, str] = {
    "checkpoint_save_duration_seconds": "Seconds from the copy of the state to the commit, of the newest save.",
    "checkpoint_size_bytes": "Bytes of the arrays in the newest checkpoint, uncompressed, shared ones included.",
    "serialization_overhead_percent": "Of the time since this start, percent that went into saving.",
    "checkpoint_success_rate": "Of the saves of this process, the share (0 to 1) that left a checkpoint.",
    "checkpoint_recovery_duration_seconds": "Seconds that the newest start took until training went on.",
    "state_consistency_score": "Of the parts of the state, the share (0 to 1) that the newest start brought back exactly.",
    "recovery_success_rate": "Of the starts that had something to go on from, the share (0 to 1) that did.",
    "version_compatibility_errors": "Starts that were refused because of a version or a feature of the format.",
    "checkpoint_storage_usage_gb": "Gigabytes (10^9 bytes) of all that lies in the run.",
    "memory_overhead_mb": "Megabytes (10^6 bytes) of memory that is kept for copies of the state.",
    "network_bandwidth_mbps": "Megabits a second that the newest save has written to a store behind a network.",
    "unbroken_training": "1 while the run is being trained, 0 once it has ended in order.",
    "unbroken_last_start_failed": "1 if the newest start had to stop.",
    "unbroken_started_timestamp_seconds": "When the newest start began, in Unix time.",
    "unbroken_last_save_failed": "1 if the newest save left no checkpoint.",
    "unbroken_last_checkpoint_timestamp_seconds": "When the newest checkpoint was committed, in Unix time.",
    "unbroken_last_checkpoint_step": "The step of the newest checkpoint.",
    "unbroken_checkpoint_good": "0 if the weights in the newest checkpoint hold NaN or infinity.",
    "unbroken_checkpoint_written_bytes": "Bytes that were written for the newest checkpoint, compressed.",
    "unbroken_checkpoints": "Checkpoints that the run holds.",
    "unbroken_age_limit_seconds": "Seconds between two checkpoints that the settings allow.",
    "unbroken_overhead_budget_percent": "Percent of the time for saving that the settings allow; 0 if they say nothing.",
    "unbroken_recovery_tier": "How far the newest start fell: 1 newest, 2 older, 3 rebuilt, 4 fresh; 0 at a first start.",
    "unbroken_steps_lost": "Steps that are done again since the newest start; 0 at a first start; -1 if nobody knows.",
    "unbroken_starts": "Starts in the history of the run, by how far they fell and how the process before had ended.",
}
"""What each gauge means, in one line."""

COUNTERS: Mapping[str, str] = {
    "unbroken_saves_total": "Saves that left a checkpoint.",
    "unbroken_saves_failed_total": "Saves that left none.",
    "unbroken_cleanups_failed_total": "Saves after which what they replace could not be removed.",
    "unbroken_starts_failed_total": "Starts that had to stop.",
    "unbroken_blocked_seconds_total": "Seconds for which training stood still to be copied.",
    "unbroken_busy_seconds_total": "Seconds for which the writer worked, beside the training.",
    "unbroken_monitoring_failures_total": "Times that metrics could not be told in one of the ways asked for.",
}

HISTOGRAMS: Mapping[str, str] = {
    "unbroken_save_seconds": "Seconds from the copy of the state to the commit.",
    "unbroken_pause_seconds": "Seconds for which training stood still for one save.",
}

_BY_LABELS = {"unbroken_starts": ("job", "tier", "fault")}
_TIERS = {Tier.NEWEST: 1, Tier.OLDER: 2, Tier.REBUILT: 3, Tier.FRESH: 4}


def names() -> frozenset[str]:
    """Return the name of every series that a scrape can bring, those of histograms in parts."""
    parts = {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "count", "sum")}
    return frozenset({*GAUGES, *COUNTERS, *parts})


class Metrics:
    """The metrics of one run, in a registry of their own.

    `memory` tells how many bytes are kept for copies, `clock` the time; both are asked when somebody reads.

    Raises:
        ConfigError: prometheus-client is not installed.
    """

    def __init__(
        self, job: str, every: Every, *, remote: bool, memory: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise ConfigError(
                "Metrics need the library prometheus-client, which is not installed.",
                hint=installing("prometheus-client"),
            ) from None
        self.registry: CollectorRegistry = prometheus.CollectorRegistry()
        self._job = job
        self._remote = remote
        self._clock = clock
        self._began: float | None = None
        self._saved = self._failed = 0
        self._durable = 0.0
        self._spent = 0.0
        registry = self.registry
        self._gauges: dict[str, Gauge] = {
            name: prometheus.Gauge(name, text, _BY_LABELS.get(name, ("job",)), registry=registry)
            for name, text in GAUGES.items()
        }
        self._counters: dict[str, Counter] = {
            name: prometheus.Counter(name, text, ("job",), registry=registry)
            for name, text in COUNTERS.items()
        }
        self._histograms: dict[str, Histogram] = {
            name: prometheus.Histogram(name, text, ("job",), buckets=SECONDS, registry=registry)
            for name, text in HISTOGRAMS.items()
        }
        for counter in self._counters.values():
            counter.labels(job)
        for histogram in self._histograms.values():
            histogram.labels(job)
        for name in GAUGES.keys() - _BY_LABELS.keys():
            self.set(name, 0)
        for name in ("checkpoint_success_rate", "recovery_success_rate", "state_consistency_score"):
            self.set(name, 1)  # nothing has gone wrong yet
        self.set("unbroken_checkpoint_good", 1)
        limits = [value for value in (every.seconds, every.max_loss) if isinstance(value, (int, float))]
        self.set("unbroken_age_limit_seconds", min(limits, default=NO_LIMIT_SECONDS))
        self.set("unbroken_overhead_budget_percent", 100 * (every.max_overhead or 0))
        self._gauges["serialization_overhead_percent"].labels(job).set_function(self._overhead)
        self._gauges["memory_overhead_mb"].labels(job).set_function(lambda: memory() / MB)

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name].labels(self._job).set(value)

    def count(self, name: str, amount: float = 1) -> None:
        """Let a counter rise."""
        self._counters[name].labels(self._job).inc(amount)

    def starting(self, now: float) -> None:
        """Recovery begins, at `now` in Unix time."""
        self.set("unbroken_started_timestamp_seconds", now)
        self.set("unbroken_training", 1)

    def started(self, report: ResumeReport) -> None:
        """Training begins, or goes on."""
        self._began = self._clock()
        self._spent = 0.0
        self.set("unbroken_last_start_failed", 0)
        fell = bool(report.reasons) and not report.origin
        recovered = report.restored or fell
        self.set("unbroken_recovery_tier", _TIERS[report.tier] if recovered else 0)
        unknown = -1 if recovered else 0  # before a first start there was nothing to lose
        self.set("unbroken_steps_lost", unknown if report.steps_lost is None else report.steps_lost)
        if recovered:
            self.set("checkpoint_recovery_duration_seconds", report.seconds)
        self.set("state_consistency_score", _consistency(report) if recovered else 1)

    def not_started(self, *, version: bool, restored_nothing: bool) -> None:
        """A start had to stop: because of a `version`, or since what was saved could not be brought back."""
        self.count("unbroken_starts_failed_total")
        self.set("unbroken_last_start_failed", 1)
        self.ended()
        if version:
            self._gauges["version_compatibility_errors"].labels(self._job).inc()
        if restored_nothing:
            self.set("state_consistency_score", 0)

    def saved(self, save: Saved) -> None:
        """A checkpoint was saved."""
        self._committed()
        self.set("unbroken_last_checkpoint_step", save.step)
        seconds = save.blocked + save.durable
        self._durable = save.durable
        self._spent += save.blocked + save.busy
        self.set("checkpoint_save_duration_seconds", seconds)
        self._histograms["unbroken_save_seconds"].labels(self._job).observe(seconds)
        self._histograms["unbroken_pause_seconds"].labels(self._job).observe(save.blocked)
        self.count("unbroken_blocked_seconds_total", save.blocked)
        self.count("unbroken_busy_seconds_total", save.busy)

    def not_saved(self, *, committed: bool) -> None:
        """A save has failed, or only what comes after its commit."""
        if committed:
            self._committed()
            self.count("unbroken_cleanups_failed_total")
            return
        self._failed += 1
        self.count("unbroken_saves_failed_total")
        self.set("unbroken_last_save_failed", 1)
        self._rate()

    def ended(self) -> None:
        """Training is over."""
        self.set("unbroken_training", 0)

    def looked(self, stock: Stock) -> None:
        """Take over what the run itself says."""
        self.set("unbroken_checkpoints", stock.checkpoints)
        if stock.checkpoints:
            self.set("unbroken_last_checkpoint_timestamp_seconds", stock.time)
            self.set("unbroken_last_checkpoint_step", stock.step)
            self.set("unbroken_checkpoint_good", int(stock.good))
            self.set("checkpoint_size_bytes", stock.size)
            self.set("unbroken_checkpoint_written_bytes", stock.written)
        if stock.usage is not None:
            self.set("checkpoint_storage_usage_gb", stock.usage / GB)
        if self._remote and self._durable > 0:
            self.set("network_bandwidth_mbps", 8 * stock.written / self._durable / MB)
        if stock.starts is None:
            return
        for (tier, fault), number in stock.starts.tally.items():
            self._gauges["unbroken_starts"].labels(self._job, tier, fault).set(number)
        tried = stock.starts.recovered + stock.starts.lost
        self.set("recovery_success_rate", stock.starts.recovered / tried if tried else 1)

    def scalars(self) -> Iterable[tuple[str, float]]:
        """Yield the gauges and counters of the run by name, as they are now."""
        for metric in self.registry.collect():
            for sample in metric.samples:
                if sample.name in GAUGES or sample.name in COUNTERS:
                    labels = [value for name, value in sample.labels.items() if name != "job"]
                    yield "/".join([sample.name, *labels]), sample.value

    def _committed(self) -> None:
        self._saved += 1
        self.count("unbroken_saves_total")
        self.set("unbroken_last_save_failed", 0)
        self._rate()

    def _rate(self) -> None:
        self.set("checkpoint_success_rate", self._saved / (self._saved + self._failed))

    def _overhead(self) -> float:
        if self._began is None:
            return 0.0
        elapsed = self._clock() - self._began
        return 100 * self._spent / elapsed if elapsed > 0 else 0.0


def _consistency(report: ResumeReport) -> float:
    if not report.restored:
        return 0.0
    promises = report.promises.values()
    if not promises:
        return 1.0
    return sum(promise.fidelity is Fidelity.EXACT for promise in promises) / len(promises)
