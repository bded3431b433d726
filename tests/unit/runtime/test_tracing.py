"""What a worker tells of a launch: read from the journal as the trainer's own writer writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tunefleet.observability.spans import FinishedSpan
from tunefleet.runtime.tracing import MAX_STEPS, AttemptTrace, read
from tunefleet.schemas.worker_link import Offer
from tunefleet.trainer_control.journal.writer import JournalWriter

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[FinishedSpan] = []

    def tell(self, span: FinishedSpan) -> None:
        self.told.append(span)

    def close(self) -> None:
        """Nothing is open."""


def offer(traceparent: str | None = PARENT) -> Offer:
    return Offer(
        token="t", task_id="task-1", workflow_id="wf", attempt=3, kind="sft", name="x", spec={}, traceparent=traceparent
    )


def write(folder: Path, launch: str = "l1") -> Path:
    journal = JournalWriter(folder, launch, attempt=3)
    journal.metric(1, {"loss": 2.0})
    journal.metric(2, {"loss": 1.9})
    journal.metric(2, {"eval_loss": 1.8, "eval_runtime": 0.5})
    journal.checkpoint(2, "checkpoint-2", "sha256:00", 4096, stall_s=0.25)
    journal.close()
    return journal.path


def test_a_journal_says_when_the_first_step_evaluations_and_saves_were(tmp_path: Path) -> None:
    began, did = read(write(tmp_path))
    assert began is not None
    assert [each.name for each in did] == ["first step", "evaluate", "save"]
    first, evaluated, saved = did
    assert first.start == began <= first.end
    assert round(evaluated.end - evaluated.start, 6) == 0.5
    assert round(saved.end - saved.start, 6) == 0.25
    assert saved.about == {"tunefleet.step": 2, "tunefleet.size_bytes": 4096}


def test_a_launch_is_told_with_what_its_trainer_did_below_it(tmp_path: Path) -> None:
    kept = Kept()
    trace = AttemptTrace(offer(), kept, "worker-1")
    trace.launched("l1", write(tmp_path), "failed", "It broke.")
    launch, *inner = kept.told
    assert (launch.name, launch.error) == ("launch", "It broke.")
    assert launch.parent is not None
    assert launch.parent.traceparent == PARENT
    assert {each.parent for each in inner} == {launch.place}
    assert trace.environment("l1") == {"TRACEPARENT": launch.place.traceparent}
    again = Kept()
    AttemptTrace(offer(), again, "worker-1").launched("l1", tmp_path / "journal/l1.jsonl", "failed", "It broke.")
    assert [each.place for each in again.told] == [each.place for each in kept.told], "told twice, it is one span"


def test_without_a_trace_nothing_is_told_and_without_a_collector_it_is_handed_on(tmp_path: Path) -> None:
    kept = Kept()
    stranger = AttemptTrace(offer(None), kept, "w")
    stranger.launched("l1", write(tmp_path), "completed", None)
    stranger.export("accept", 0.0)
    assert (kept.told, stranger.environment("l1"), stranger.trace_id) == ([], {}, None)
    assert AttemptTrace(offer(), None, "w").environment("l1")["TRACEPARENT"].startswith(PARENT[:35])


def test_a_long_or_broken_journal_costs_little_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    lines: list[Any] = [{"seq": 0, "at": 1.0, "type": "launch", "launch": "l"}]
    lines += [{"seq": 1, "at": 2.0, "type": "progress", "phase": "training", "step": 1}]
    lines += [
        {"seq": n, "at": 3.0 + n, "type": "checkpoint", "step": n, "name": "c", "digest": "d", "size_bytes": 1}
        for n in range(2, MAX_STEPS + 500)
    ]
    path.write_text('{"type": "metric"\nnot json\n[]\n' + "\n".join(json.dumps(each) for each in lines) + "\n{")
    began, did = read(path)
    assert (began, len(did)) == (1.0, MAX_STEPS)
    assert read(tmp_path / "nothing.jsonl") == (None, [])
