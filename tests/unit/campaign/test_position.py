"""Where a cycle stands in the data: every row once an epoch, whatever the sizes; the same wherever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.campaign.data_documents import chunk_at, epoch_seed

SIZES = st.integers(1, 500)


@given(rows=SIZES, most=SIZES, epoch=st.integers(0, 5), seed=st.integers(0, 2**63 - 1))
def test_an_epoch_has_every_row_once(rows: int, most: int, epoch: int, seed: int) -> None:
    count = chunk_at(0, rows=rows, most=most, seed=seed).count
    chunks = [chunk_at(epoch * count + index, rows=rows, most=most, seed=seed) for index in range(count)]
    taken = [row for chunk in chunks for row in range(chunk.start, chunk.stop)]
    assert taken == list(range(rows))
    assert {chunk.epoch for chunk in chunks} == {epoch}
    assert len({chunk.seed for chunk in chunks}) == 1
    sizes = {chunk.rows for chunk in chunks}
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(rows=SIZES, most=SIZES, position=st.integers(0, 10_000))
def test_there_are_no_more_chunks_than_it_takes(rows: int, most: int, position: int) -> None:
    chunk = chunk_at(position, rows=rows, most=most, seed=1)
    assert (chunk.count - 1) * most < rows <= chunk.count * most
    assert chunk == chunk_at(position, rows=rows, most=most, seed=1)


def test_each_epoch_has_an_order_of_its_own() -> None:
    seeds = [epoch_seed(45, epoch) for epoch in range(200)]
    assert seeds[0] == 45
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Written down: another version must not read the chunks of a running campaign in another order.
    assert seeds[1] == 4392412834842585099


def test_no_row_is_no_chunk() -> None:
    with pytest.raises(ValueError, match="no row"):
        chunk_at(0, rows=0, most=1, seed=1)
