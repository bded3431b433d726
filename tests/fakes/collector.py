"""A collector of OpenTelemetry spans: OTLP over real HTTP, read with OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.fakes.listening import listening


@dataclass(frozen=True)
class Span:
    """A span as it came."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    about: dict[str, Any]
    failed: bool
    links: tuple[tuple[str, str], ...] = ()


@dataclass
class Collector:
    """What a collector has been told.

    Args:
        url: Its base URL.
    """

    url: str = ""
    refuses: bool = False
    _spans: dict[tuple[str, str], Span] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spans(self, trace_id: str | None = None) -> list[Span]:
        """Return the spans, each once, in the order of their beginning."""
        with self._lock:
            found = [span for span in self._spans.values() if trace_id in {None, span.trace_id}]
        return sorted(found, key=lambda span: span.start_ns)

    def of_task(self, task_id: str) -> list[Span]:
        """Return the spans of the trace that a task belongs to."""
        traces = {span.trace_id for span in self.spans() if span.about.get("tunefleet.task") == task_id}
        assert len(traces) <= 1, f"{task_id} has {len(traces)} traces"
        return self.spans(traces.pop()) if traces else []

    def take(self, body: bytes) -> None:
        """Take what a process has sent."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    told = _read(about["service.name"], span)
                    with self._lock:
                        self._spans[told.trace_id, told.span_id] = told


def _read(service: str, span: Any) -> Span:
    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    return Span(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        values,
        span.status.code == 2,
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """Take spans while the body runs."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            status = 503 if collector.refuses else 200 if self.path == "/v1/traces" else 404
            if status == 200:
                collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with listening(Handler) as url:
        collector.url = url
        yield collector
