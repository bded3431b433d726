"""The counters and histograms of a server; one registry per server.

No label contains a task id, a user name or a raw request path: label values are a fixed set, or limited to `MOST`, to
bound the number of time series.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

import tunefleet
from tunefleet.spec.options.notify import Format

# Maximum number of values of a label that users can choose; further ones are counted as `other`.
MOST: Final = 64
OTHER: Final = "other"
_QUICK: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WAITS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
# The `_created` series would be a third of the output, and are rarely used.
disable_created_metrics()  # type: ignore[no-untyped-call]
_WORK: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_LONG: Final = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 3 * 24 * 3600, 7 * 24 * 3600)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
_BATCHES: Final = (1, 5, 10, 50, 100, 500, 1000, 2000)


class Bounded:
    """Keeps the first `MOST` values of a label, and maps all others to `other`."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """Return the label for a value."""
        if value in self._known:
            return value
        if len(self._known) < self._most:
            self._known.add(value)
            return value
        return OTHER


class Meters:
    """The counters and histograms of one server."""

    def __init__(self, wall: Callable[[], float] = time.time, *, process: bool = True) -> None:
        self.wall = wall
        self.registry = registry = CollectorRegistry()
        if process:
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
            GCCollector(registry=registry)
        self.kind = Bounded()
        Info("tunefleet_server", "Version of the server.", registry=registry).info({"version": tunefleet.__version__})
        self._tasks(registry)
        self._traffic(registry)
        self._serving(registry)
        self._storing(registry)
        self._learning(registry)
        self._initialize_series()

    def _initialize_series(self) -> None:
        """Create all series with 0: Prometheus cannot see the first increase of a series that starts at 1."""
        for family, label_values in (
            (self.aggregations, ("made", "later", "failed")),
            (self.cycles, ("begun", "completed", "abandoned")),
            (self.campaign_trouble, ("retrying", "failed", "budget")),
            (self.exchanges, ("answered", "empty", "refused")),
        ):
            for value in label_values:
                family.labels(value)
        for format_ in get_args(Format):
            for outcome in ("sent", "later", "failed"):
                self.notices.labels(format_, outcome)

    def _tasks(self, registry: CollectorRegistry) -> None:
        self.moves = Counter(
            "tunefleet_task_moves",
            "Task status changes, by new status, reason and task kind.",
            ["status", "reason", "kind"],
            registry=registry,
        )
        self.placement = Histogram(
            "tunefleet_placement_seconds",
            "Time from a task being ready to its offer to a worker, for each attempt.",
            ["kind"],
            buckets=_WAITS,
            registry=registry,
        )
        self.accept = Histogram(
            "tunefleet_accept_seconds",
            "Time from the offer until the worker accepts it.",
            ["kind"],
            buckets=_WAITS,
            registry=registry,
        )
        self.run = Histogram(
            "tunefleet_attempt_seconds",
            "Time from the accept to the end of an attempt, by end state.",
            ["kind", "state"],
            buckets=_WAITS,
            registry=registry,
        )
        self.leases_lost = Counter(
            "tunefleet_leases_lost",
            "Accepted attempts that ended because their worker was lost.",
            registry=registry,
        )
        self.offers_void = Counter(
            "tunefleet_offers_void", "Offers that no worker accepted in time.", registry=registry
        )
        self.workers_lost = Counter(
            "tunefleet_workers_lost", "Workers that were lost because they stopped responding.", registry=registry
        )

    def _traffic(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "tunefleet_http_requests",
            "HTTP requests, by route template and status class (0xx: aborted before the response).",
            ["method", "route", "status"],
            registry=registry,
        )
        self.request_s = Histogram(
            "tunefleet_http_request_seconds",
            "Time from the request headers to the end of the response, including long polls and streams.",
            ["method", "route"],
            buckets=_QUICK,
            registry=registry,
        )
        self.exchanges = Counter(
            "tunefleet_link_exchanges",
            "Exchanges with workers, by outcome: with content, empty after the timeout, or refused.",
            ["outcome"],
            registry=registry,
        )
        self.offers_sent = Counter(
            "tunefleet_link_offers_sent",
            "Offers sent in exchange responses, including repeated ones.",
            registry=registry,
        )
        self.notices = Counter(
            "tunefleet_notifications",
            "Notification delivery attempts, by format and outcome (sent, later, failed).",
            ["format", "outcome"],
            registry=registry,
        )

    def _serving(self, registry: CollectorRegistry) -> None:
        self.endpoint = Bounded()
        self.endpoint_requests = Counter(
            "tunefleet_endpoint_requests",
            "Requests to endpoints, by the status class of the response (0xx: the client left before it).",
            ["endpoint", "status"],
            registry=registry,
        )
        self.endpoint_tokens = Counter(
            "tunefleet_endpoint_tokens",
            "Tokens of requests to endpoints (prompt, completion).",
            ["endpoint", "kind"],
            registry=registry,
        )
        self.endpoint_first_s = Histogram(
            "tunefleet_endpoint_first_byte_seconds",
            "From a request to an endpoint to the first part of its response, including waiting for a replica.",
            ["endpoint"],
            buckets=_WORK,
            registry=registry,
        )

    def _storing(self, registry: CollectorRegistry) -> None:
        self.group = Histogram(
            "tunefleet_store_group_operations",
            "Number of operations committed together.",
            buckets=_SIZES,
            registry=registry,
        )
        self.commit_s = Histogram(
            "tunefleet_store_commit_seconds",
            "Duration of a group of operations, including its commit.",
            buckets=_QUICK,
            registry=registry,
        )
        self.write_s = Histogram(
            "tunefleet_store_write_seconds",
            "Time from a write request to its commit, including waiting.",
            buckets=_QUICK,
            registry=registry,
        )
        self.records = Counter("tunefleet_journal_records", "Journal records that were stored.", registry=registry)
        self.batch = Histogram(
            "tunefleet_journal_batch_records",
            "Number of records pending when a batch was delivered.",
            buckets=_BATCHES,
            registry=registry,
        )
        self.lag_s = Histogram(
            "tunefleet_journal_lag_seconds",
            "Time from writing the oldest record of a batch (by the host's clock) until the batch is stored.",
            buckets=_WAITS,
            registry=registry,
        )

    def _learning(self, registry: CollectorRegistry) -> None:
        self.aggregations = Counter(
            "tunefleet_aggregations",
            "Attempts to aggregate a federation round, by outcome (made, later, failed).",
            ["outcome"],
            registry=registry,
        )
        self.aggregation_s = Histogram(
            "tunefleet_aggregation_seconds",
            "Duration of an attempt to aggregate a round.",
            ["outcome"],
            buckets=_WORK,
            registry=registry,
        )
        self.round_s = Histogram(
            "tunefleet_round_seconds",
            "Time from opening a federation round until it is published or fails.",
            ["outcome"],
            buckets=_LONG,
            registry=registry,
        )
        self.federation_events = Counter(
            "tunefleet_federation_events",
            "Federation events: rounds, versions and updates.",
            ["event"],
            registry=registry,
        )
        self.cycles = Counter(
            "tunefleet_campaign_cycles",
            "Campaign cycles, by outcome (begun, completed, abandoned).",
            ["outcome"],
            registry=registry,
        )
        self.cycle_s = Histogram(
            "tunefleet_campaign_cycle_seconds",
            "Time from opening a campaign cycle to its end (completed, abandoned), including its sleep.",
            ["outcome"],
            buckets=_LONG,
            registry=registry,
        )
        self.campaign_trouble = Counter(
            "tunefleet_campaign_trouble",
            "Retried steps, failures and exceeded budgets in campaigns.",
            ["event"],
            registry=registry,
        )
