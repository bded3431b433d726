"""Sends finished spans to an OpenTelemetry collector, in the background.

Spans are recorded when they have ended, with derived ids (`traceparent`), so none is kept open. The SDK sends them in
batches and drops what the collector does not accept in time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from tunefleet import errors
from tunefleet.errors import MachineError
from tunefleet.observability.context import SpanContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext as OtelSpanContext

Value = str | bool | int | float
# Timeout, in seconds, of one export, and of the final flush when a process ends.
SEND_WITHIN_S: Final = 5
_PATH: Final = "/v1/traces"


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """A finished span.

    Args:
        parent: The parent span; `None` for the root of a trace.
        error: Why it failed, in one sentence; `None` if it did not.
    """

    name: str
    place: SpanContext
    parent: SpanContext | None
    start: float
    end: float
    about: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    links: Sequence[SpanContext] = ()


class Spans(Protocol):
    """A sink for finished spans."""

    def tell(self, span: FinishedSpan) -> None:
        """Record a span; never blocks or raises."""

    def close(self) -> None:
        """Send remaining spans, with a timeout of a few seconds."""


def open_spans(endpoint: str | None, service: str, version: str, instance: str | None = None) -> Spans | None:
    """Return the span sink of a process; `None` without an endpoint, in which case nothing is imported.

    Args:
        endpoint: Base URL of a collector that accepts OTLP over HTTP, such as `http://localhost:4318`.
        service: `service.name`, such as `tunefleet-server`.

    Raises:
        MachineError: If the required packages are not installed.
    """
    if endpoint is None:
        return None
    try:
        return _OtlpExporter(endpoint, service, version, instance)
    except ImportError as error:
        raise MachineError(
            f"Traces cannot be sent to {endpoint}: {error}.",
            hint=f"Install them with `{errors.install_command('otel')}`, or unset OTEL_EXPORTER_OTLP_ENDPOINT.",
        ) from error


class _OtlpExporter:
    def __init__(self, endpoint: str, service: str, version: str, instance: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        # A warning for each batch that the collector does not accept would flood the process's own log.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        resource = {"service.name": service, "service.version": version}
        if instance is not None:
            resource["service.instance.id"] = instance
        self._resource = Resource.create(resource)
        url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
        exporter = OTLPSpanExporter(endpoint=url, timeout=SEND_WITHIN_S)
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=1000)

    def tell(self, span: FinishedSpan) -> None:
        if span.place.sampled:
            self._processor.on_end(self._readable(span))

    def close(self) -> None:
        self._processor.force_flush(SEND_WITHIN_S * 1000)
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: FinishedSpan) -> ReadableSpan:
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


def _context(place: SpanContext, *, remote: bool) -> OtelSpanContext:
    from opentelemetry.trace import SpanContext as OtelSpanContext  # noqa: PLC0415
    from opentelemetry.trace import TraceFlags  # noqa: PLC0415

    return OtelSpanContext(int(place.trace_id, 16), int(place.span_id, 16), remote, TraceFlags(int(place.sampled)))
