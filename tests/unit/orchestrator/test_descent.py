"""One trace for a task and what comes from it: its parts, its retries; what goes along with another is linked to it."""

from __future__ import annotations

from tests.unit.orchestrator import test_fanout
from tests.unit.orchestrator.lab import Lab
from tests.unit.orchestrator.pipelines import Pipelines, stage
from tunefleet.observability import context

CALLER = context.read_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


async def test_a_part_is_in_its_callers_trace_where_this_server_sends_nothing(lab: Lab) -> None:
    pipe = Pipelines(lab, await lab.online())
    with context.parent_span(CALLER):
        await pipe.submit(stage("all", spec=test_fanout.spread(2)))
    assert CALLER is not None
    found = [context.read_traceparent(offer.traceparent) for offer in await pipe.take()]
    assert [place and place.trace_id for place in found] == [CALLER.trace_id] * 2
