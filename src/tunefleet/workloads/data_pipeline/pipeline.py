"""The steps of a `data` task in sequence; each counts its input and output rows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tunefleet.analysis.dataset.messages import RowError
from tunefleet.errors import DataError
from tunefleet.spec.tasks.data_steps import StepBlock
from tunefleet.spec.tasks.data_task import DataTaskSpec
from tunefleet.workloads.data_pipeline.conversion import Conversion, Tokenizers
from tunefleet.workloads.data_pipeline.deduplication import Duplicates, same_rows
from tunefleet.workloads.data_pipeline.inputs import Source
from tunefleet.workloads.data_pipeline.row_steps import holds, mapped
from tunefleet.workloads.data_pipeline.row_types import Row
from tunefleet.workloads.data_pipeline.spool import Spool

Rows = Iterator[Row]
_REPORT_ROWS = 1000


class ProgressCallback(Protocol):
    """Receives the progress: the current phase and the number of rows."""

    def __call__(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Report `phase` (`downloading`, `reading`, `shuffling`, `splitting`), rows, and their total; 0 if unknown."""


def _silent(phase: str, done: int = 0, total: int = 0) -> None:
    del phase, done, total


@dataclass
class Count:
    """Row counts of a step.

    Args:
        step: Its number among the steps, from 1; 0 is reading.
        more: Further counts, such as `duplicates`.
    """

    step: int
    name: str
    of: str | None = None
    rows_in: int = 0
    rows_out: int = 0
    bad: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the counts as in the result."""
        plain = asdict(self)
        plain |= plain.pop("more")
        return {
            {"step": "number", "name": "step", "of": "source"}.get(name, name): value
            for name, value in plain.items()
            if not (name == "of" and value is None)
        }


class Pipeline:
    """The steps of one task."""

    def __init__(
        self,
        spec: DataTaskSpec,
        sources: Sequence[Source],
        workspace: Path,
        *,
        tokenizers: Tokenizers,
        say: Callable[[str], None],
        tell: ProgressCallback = _silent,
    ) -> None:
        self._spec = spec
        self._sources = sources
        self._workspace = workspace
        self._tokenizers = tokenizers
        self._say = say
        self._tell = tell
        self.counts: list[Count] = []

    def run(self) -> dict[str, Iterable[Row]]:
        """Return the rows of each file, by its name without suffix; they are produced on iteration."""
        mixing = next((at for at, step in enumerate(self._spec.steps) if step.word == "mix"), None)
        streams = [self._read(source, named=len(self._sources) > 1) for source in self._sources]
        rows = self._all(streams)
        if mixing is None:
            rows = self._part(rows)
        for at, step in enumerate(self._spec.steps):
            if mixing is not None and at < mixing:
                streams = [self._step(at, step, stream, of) for of, stream in enumerate(streams)]
            elif step.word == "mix":
                rows = self._mix(at, step, streams)
            elif step.word == "split":
                return self._split(at, step, rows)
            else:
                rows = self._step(at, step, rows, None)
        return {"train": rows}

    def _count(self, at: int, name: str, of: str | None = None) -> Count:
        made = Count(at, name, of)
        self.counts.append(made)
        return made

    def _read(self, source: Source, *, named: bool) -> Rows:
        count = self._count(0, "read", source.name if named else None)

        def bad(number: int, error: DataError) -> None:
            if self._spec.on_bad == "fail":
                raise error
            count.rows_in += 1
            count.bad += 1
            del number

        def rows() -> Rows:
            self._tell("reading" if source.is_here else "downloading")
            for row in source.rows(bad):
                count.rows_in += 1
                count.rows_out += 1
                if count.rows_out % _REPORT_ROWS == 0:
                    self._tell("reading", count.rows_out)
                yield row

        return rows()

    @staticmethod
    def _all(streams: Sequence[Rows]) -> Rows:
        return itertools.chain.from_iterable(streams)

    def _part(self, rows: Rows) -> Rows:
        """Return the rows of this task's shard, if the task is sharded."""
        shard = self._spec.shard
        if shard is None:
            return rows
        if not shard.contiguous:
            return itertools.islice(rows, shard.index, None, shard.total)
        return self._slice_of(rows, shard.index, shard.total)

    def _slice_of(self, rows: Rows, index: int, total: int) -> Rows:
        spool = self._spooled("shard", rows)
        size = len(spool)
        yield from spool.pick(range(size * index // total, size * (index + 1) // total))

    def _step(self, at: int, step: StepBlock, rows: Rows, of: int | None) -> Rows:
        count = self._count(at + 1, step.word, None if of is None else self._sources[of].name)
        match step.word:
            case "filter":
                return self._each(count, rows, self._filter(step))
            case "map":
                return self._each(count, rows, lambda row: mapped(step.does, row.values))
            case "convert":
                return self._each(count, rows, self._convert(at, step))
            case "dedupe":
                return self._each(count, rows, self._dedupe(step, count))
            case "limit":
                return self._passing(count, itertools.islice(rows, step.does))
            case "slice":
                return self._passing(count, itertools.islice(rows, step.does.start, step.does.stop))
            case word:
                return self._drawn(count, word, step.does, rows)

    def _each(self, count: Count, rows: Rows, work: Callable[[Row], dict[str, Any] | None]) -> Rows:
        """Yield the result of a step for each row; None drops the row."""
        for row in rows:
            count.rows_in += 1
            try:
                values = work(row)
            except RowError as error:
                if self._spec.on_bad == "fail":
                    raise DataError(
                        f"Step {count.step} ({count.name}) failed on row {row.number} of "
                        f"{self._sources[row.source].name}: {error}.",
                        hint="Fix the row or the step; `on_bad: drop` skips and counts such rows.",
                    ) from None
                count.bad += 1
                continue
            if values is not None:
                count.rows_out += 1
                yield Row(values, row.source, row.number)
        # A single shard may be left without rows: the other shards have the rest.
        if count.rows_in and not count.rows_out and self._spec.shard is None:
            raise _nothing_left(
                count, "Check its conditions; `tunefleet data try FILE` shows a few rows after the steps."
            )

    def _filter(self, step: StepBlock) -> Callable[[Row], dict[str, Any] | None]:
        assert step.filter is not None
        wanted, tokens = step.filter, self._tokenizers.counter(step.filter.tokenizer)
        return lambda row: row.values if holds(wanted, row.values, tokens) else None

    def _convert(self, at: int, step: StepBlock) -> Callable[[Row], dict[str, Any]]:
        assert step.convert is not None
        template = self._tokenizers.template(step.convert.tokenizer)
        conversion = Conversion(step.convert, template, lambda text: self._say(f"Step {at + 1} (convert): {text}"))
        return lambda row: conversion.converted(row.values, row.source, self._sources[row.source].name)

    def _dedupe(self, step: StepBlock, count: Count) -> Callable[[Row], dict[str, Any] | None]:
        assert step.dedupe is not None
        seen = Duplicates(step.dedupe)
        near = step.dedupe.near is not None

        def work(row: Row) -> dict[str, Any] | None:
            new = seen.is_new(row.values)
            count.more = {"duplicates": seen.exact, **({"near_duplicates": seen.near} if near else {})}
            return row.values if new else None

        return work

    def _passing(self, count: Count, rows: Iterable[Row]) -> Rows:
        for row in rows:
            count.rows_in += 1
            count.rows_out += 1
            yield row

    def _drawn(self, count: Count, word: str, wanted: Any, rows: Rows) -> Rows:
        spool = self._spooled(f"{count.step}-{count.of or 'all'}-{word}", rows)
        size = count.rows_in = len(spool)
        if word == "shuffle":
            chosen, doing = order("shuffle", wanted.seed, size), "shuffling"
        else:
            share = wanted.count if wanted.count is not None else round(wanted.fraction * size)
            if size and not share:
                raise _nothing_left(count, "Use a larger fraction, or a count.")
            chosen, doing = sampled(wanted.seed, size, share), "sampling"
        self._tell(doing, 0, len(chosen))
        for row in spool.pick(chosen):
            count.rows_out += 1
            if count.rows_out % _REPORT_ROWS == 0:
                self._tell(doing, count.rows_out, len(chosen))
            yield row

    def _mix(self, at: int, step: StepBlock, streams: Sequence[Rows]) -> Rows:
        return self._mixed(self._count(at + 1, "mix"), step, streams)

    def _mixed(self, count: Count, step: StepBlock, streams: Sequence[Rows]) -> Rows:
        assert step.mix is not None
        seed, weights = step.mix.seed, [source.weight for source in self._spec.sources]
        again = step.mix.until == "all_exhausted"
        spools = [self._spooled(f"{count.step}-{n}-mix", rows) for n, rows in enumerate(streams)] if again else None
        # Each source must have a row: an empty one would silently end the mixture at its first turn.
        begun: list[Rows] = [iter(spool) for spool in spools] if spools else list(streams)
        sources = [self._begun(n, rows) for n, rows in enumerate(begun)]
        taken, rounds, index = [0] * len(sources), [0] * len(sources), 0
        while True:
            number = source_of(seed, index, weights)
            row = next(sources[number], None)
            if row is None:
                rounds[number] += 1
                if spools is None or all(rounds):
                    break
                sources[number] = iter(spools[number])
                continue
            index += 1
            taken[number] += 1
            count.rows_in = count.rows_out = index
            names = [source.name for source in self._sources]
            count.more = {"taken": dict(zip(names, taken, strict=True))}
            yield row

    def _begun(self, of: int, rows: Rows) -> Rows:
        first = next(rows, None)
        if first is None:
            raise DataError(
                f"{self._sources[of].name} has no row to mix.",
                hint="Check its path and split, and the steps before mix; or remove the source.",
            )
        return itertools.chain((first,), rows)

    def _split(self, at: int, step: StepBlock, rows: Rows) -> dict[str, Iterable[Row]]:
        assert step.split is not None
        count = self._count(at + 1, "split")
        spool = self._spooled(f"{at + 1}-split", rows)
        self._tell("splitting")
        count.rows_in = count.rows_out = len(spool)
        groups, distinct = same_rows(spool)
        chosen = parts(step.split.seed, groups, distinct, step.split.parts)
        sizes = {name: len(numbers) for name, numbers in chosen.items()}
        count.more = {"parts": sizes, "duplicates": len(spool) - distinct}
        return {name: spool.pick(numbers) for name, numbers in chosen.items()}

    def _spooled(self, name: str, rows: Rows) -> Spool:
        """Write rows to disk; a relaunch finds them there, with the counts up to here."""
        plain = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in name)
        spool = Spool(self._workspace / plain)
        stored = spool.noted()
        if stored is None:
            spool.fill(rows)
            spool.note({"counts": [asdict(count) for count in self.counts]})
            return spool
        # The streams of these steps are not consumed again, so their counts come from the earlier launch.
        for count, before in zip(self.counts, stored["counts"], strict=False):
            if not count.rows_in:
                count.rows_in, count.rows_out, count.bad = before["rows_in"], before["rows_out"], before["bad"]
                count.more = before["more"]
        return spool


def _nothing_left(count: Count, hint: str) -> DataError:
    of = f" of {count.of}" if count.of is not None else ""
    return DataError(
        f"No row is left: step {count.step} ({count.name}) drops all {count.rows_in:,} rows{of}.", hint=hint
    )


Keys = npt.NDArray[np.uint64]


def draw(purpose: str, seed: int, index: int) -> int:
    """Return a pseudorandom number of 64 bits for an index, uniformly distributed.

    A hash and not a generator: each number is independent of the order, so that a relaunch and a shard agree.
    """
    digest = hashlib.blake2b(f"{purpose}:{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def source_of(seed: int, index: int, weights: Sequence[float]) -> int:
    """Return which source supplies row `index` of a mixture.

    Args:
        index: Number of the row in the mixture, from 0.
    """
    bounds = list(itertools.accumulate(weights))
    at = draw("mix", seed, index) / 2**64 * bounds[-1]
    return next((number for number, bound in enumerate(bounds) if at < bound), len(weights) - 1)


def order(purpose: str, seed: int, count: int) -> Keys:
    """Return the numbers below `count`, shuffled."""
    keys = np.fromiter((draw(purpose, seed, index) for index in range(count)), dtype=np.uint64, count=count)
    return np.argsort(keys, kind="stable").astype(np.uint64)


def sampled(seed: int, count: int, wanted: int) -> Keys:
    """Return the numbers of a sample, ascending."""
    return np.sort(order("sample", seed, count)[:wanted])


def parts(seed: int, groups: npt.NDArray[np.int64], count: int, wanted: dict[str, float]) -> dict[str, Keys]:
    """Return the rows of each part of a split, ascending; the remaining rows are `train`.

    Args:
        wanted: Part → fraction below 1, or number, of the distinct rows.

    Raises:
        DataError: If there are too few rows, or a part gets none.
    """
    drawn, begin = order("split", seed, count), 0
    # Zero is `train`, which gets all rows that no part takes.
    sides = np.zeros(count, dtype=np.uint8)
    for side, (name, value) in enumerate(wanted.items(), 1):
        size = round(value * count) if value < 1 else int(value)
        if size == 0 or begin + size >= count:
            raise DataError(
                f"A split with {size:,} of {count:,} distinct rows for {name} leaves one side empty.",
                hint="Change the split step, or add rows.",
            )
        sides[drawn[begin : begin + size]] = side
        begin += size
    of_rows = sides[groups]
    return {name: np.flatnonzero(of_rows == side).astype(np.uint64) for side, name in enumerate(("train", *wanted))}
