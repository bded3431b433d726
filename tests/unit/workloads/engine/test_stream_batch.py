"""Streams in one batch: late ones join, ended ones leave, and those whose clients have left are aborted."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tunefleet.workloads.engine.batch_rows import Row
from tunefleet.workloads.engine.stream_batch import Round, StreamBatch, StreamedRow


@dataclass
class FakeRow:
    """A row that needs a number of steps."""

    steps: int
    prompt: list[int] = field(default_factory=lambda: [1])
    finish: str | None = None

    def begin(self) -> None:
        pass

    def step(self) -> None:
        self.steps -= 1
        if self.steps <= 0 and self.finish is None:
            self.finish = "stop"

    def abort(self) -> None:
        self.finish = "abort"


class Batch:
    """A batch, and what happened in it."""

    def __init__(self, room: int = 8) -> None:
        self.sizes: list[int] = []
        self.ended: queue.Queue[tuple[FakeRow, BaseException | None]] = queue.Queue()
        self.at_step: dict[int, Any] = {}
        self.fails: BaseException | None = None
        self.room = room
        self.streams = StreamBatch(self.run, lambda rows: min(len(rows), self.room), self.shrink)

    def add(self, steps: int, *, gone: bool = False) -> FakeRow:
        row = FakeRow(steps)
        self.streams.add(
            StreamedRow(cast(Row, row), lambda: gone, lambda: None, lambda error: self.ended.put((row, error)))
        )
        return row

    def run(self, current: Round) -> None:
        self.sizes.append(len(current.rows))
        if self.fails is not None:
            raise self.fails
        while any(each.row.finish is None for each in current.rows):
            for each in current.rows:
                cast(FakeRow, each.row).step()
            current.after_step()
            self.at_step.pop(current.steps, lambda: None)()
            if current.is_over():
                return

    def shrink(self, error: BaseException, rows: int) -> bool:
        if rows == 1 or not isinstance(error, MemoryError):
            return False
        self.room, self.fails = rows // 2, None
        return True

    def all_ended(self, count: int) -> list[FakeRow]:
        found = [self.ended.get(timeout=10) for _ in range(count)]
        assert [error for _, error in found] == [None] * count
        return [row for row, _ in found]


def test_a_late_stream_joins_the_running_ones() -> None:
    batch = Batch()
    batch.at_step[3] = lambda: batch.add(5)
    long = batch.add(60)
    late, last = batch.all_ended(2)
    assert last is long
    assert late.finish == "stop"
    assert batch.sizes[:2] == [1, 2], "the first round ends early, and the second one has both"


def test_streams_without_room_wait_and_are_all_answered() -> None:
    batch = Batch(room=2)
    batch.at_step[1] = lambda: [batch.add(4) for _ in range(5)]
    batch.add(20)
    batch.all_ended(6)
    assert max(batch.sizes) == 2


def test_a_stream_whose_client_has_left_is_aborted() -> None:
    batch = Batch()
    batch.add(10_000, gone=True)
    (row,) = batch.all_ended(1)
    assert (row.finish, row.steps) == ("abort", 9_999)


def test_too_little_memory_makes_the_batch_smaller_and_other_errors_reach_every_stream() -> None:
    batch = Batch()

    def more() -> None:
        batch.add(30)
        batch.fails = MemoryError("out")

    batch.at_step[1] = more
    batch.add(30)
    batch.all_ended(2)
    assert batch.room == 1
    batch.fails = ValueError("broken")
    batch.add(1)
    row, error = batch.ended.get(timeout=10)
    assert str(error) == "broken"
    with pytest.raises(queue.Empty):
        batch.ended.get_nowait()
    assert row.finish is None
