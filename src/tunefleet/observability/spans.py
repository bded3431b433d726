"""Sends finished spans to an OpenTelemetry collector, in the background.

Our spans are told when they have ended, with ids that are derived (`traceparent`), so nothing is held open meanwhile.
The SDK batches and sends; what the collector does not take in time is dropped, never waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from tunefleet import errors
from tunefleet.errors import MachineError
from tunefleet.observability.traceparent import Place

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

Value = str | bool | int | float
SEND_WITHIN_S: Final = 5
"""How long one try to send may take, and the last one when a process ends."""
_PATH: Final = "/v1/traces"


@dataclass(frozen=True, slots=True)
class Told:
    """A span that has ended.

    Args:
        parent: The span that it belongs to; null for the head of a trace.
        error: Why it failed, in one sentence; null if it did not.
    """

    name: str
    place: Place
    parent: Place | None
    start: float
    end: float
    about: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    links: Sequence[Place] = ()


class Spans(Protocol):
    """Where finished spans go."""

    def tell(self, span: Told) -> None:
        """Take a span; never waits, never raises."""

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""


def open_spans(endpoint: str | None, service: str, version: str, instance: str | None = None) -> Spans | None:
    """Return where a process sends its spans; null without an endpoint: then nothing is imported.

    Args:
        endpoint: Base URL of a collector that speaks OTLP over HTTP, such as `http://localhost:4318`.
        service: `service.name`, such as `tunefleet-server`.

    Raises:
        MachineError: If the packages for it are not installed.
    """
    if endpoint is None:
        return None
    try:
        return _Exported(endpoint, service, version, instance)
    except ImportError as error:
        raise MachineError(
            f"Traces cannot be sent to {endpoint}: {error}.",
            hint=f"Install them with `{errors.install('otel')}`, or unset OTEL_EXPORTER_OTLP_ENDPOINT.",
        ) from error


class _Exported:
    def __init__(self, endpoint: str, service: str, version: str, instance: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        # One line for each batch that a collector does not take would bury what the process itself says.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        about = {"service.name": service, "service.version": version}
        if instance is not None:
            about["service.instance.id"] = instance
        self._resource = Resource.create(about)
        url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
        exporter = OTLPSpanExporter(endpoint=url, timeout=SEND_WITHIN_S)
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=1000)

    def tell(self, span: Told) -> None:
        if span.place.sampled:
            self._processor.on_end(self._readable(span))

    def close(self) -> None:
        self._processor.force_flush(SEND_WITHIN_S * 1000)
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Told) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.trace import Link, SpanKind  # noqa: PLC0415
        from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

        return ReadableSpan(
            span.name,
            context=_context(span.place, remote=False),
            parent=None if span.parent is None else _context(span.parent, remote=True),
            resource=self._resource,
            attributes=dict(span.about),
            links=[Link(_context(place, remote=True)) for place in span.links],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=int(span.start * 1e9),
            end_time=int(max(span.start, span.end) * 1e9),
        )


def _context(place: Place, *, remote: bool) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    return SpanContext(int(place.trace_id, 16), int(place.span_id, 16), remote, TraceFlags(int(place.sampled)))
