"""W3C's `traceparent`, and span ids that processes derive alike."""

from __future__ import annotations

import sys

import pytest

from tunefleet.errors import MachineError
from tunefleet.observability import context
from tunefleet.observability.context import SpanContext
from tunefleet.observability.spans import open_spans

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (GOOD, SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)),
        (GOOD[:-1] + "0", SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", False)),
        (f" {GOOD} ", SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)),
        ("cc" + GOOD[2:] + "-later", SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)),
        (GOOD + "-more", None),
        ("ff" + GOOD[2:], None),
        (GOOD.upper(), None),
        (GOOD.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), None),
        (GOOD.replace("b7ad6b7169203331", "0" * 16), None),
        ("nonsense", None),
        ("", None),
        (None, None),
    ],
)
def test_what_a_header_names(text: str | None, place: SpanContext | None) -> None:
    assert context.read_traceparent(text) == place


def test_a_task_lies_below_its_caller_or_heads_a_trace_of_its_own() -> None:
    caller = context.read_traceparent(GOOD)
    assert caller is not None
    below, alone = context.of_task("task-1", caller), context.of_task("task-1")
    assert below.trace_id == caller.trace_id
    assert below.span_id not in {caller.span_id, alone.span_id}
    assert alone.trace_id != context.of_task("task-2").trace_id
    assert context.of_task("task-1") == alone  # whoever asks, and whenever
    assert alone.span("launch a") != alone.span("launch b")
    assert context.read_traceparent(alone.traceparent) == alone


def test_a_caller_who_keeps_nothing_is_followed_and_nothing_is_kept() -> None:
    caller = context.read_traceparent(GOOD[:-1] + "0")
    assert caller is not None
    assert not context.of_task("task-1", caller).span("launch").sampled


def test_an_endpoint_without_the_packages_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MachineError, match="cannot be sent") as refused:
        open_spans("http://127.0.0.1:1", "tunefleet-server", "1")
    assert "[otel]" in (refused.value.hint or "")
