"""Rows are counted where they pass."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global RowCounter, adapted, base, batch, body_of, nn, sequences_per_row, torch
    pytest.importorskip("peft")

    import torch
    from torch import nn

    from tests.unit.workloads.federated.tiny import adapted, base, batch
    from tunefleet.workloads.federated.row_counter import RowCounter, body_of, sequences_per_row


pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.mark.parametrize("adapter", [True, False], ids=["with an adapter", "without"])
def test_what_is_trained_on_counts_and_nothing_else(adapter: bool) -> None:
    model = adapted() if adapter else base()
    model.train()
    with RowCounter(model) as rows:
        model(**batch(rows=4)).loss.backward()
        model(**batch(rows=3)).loss.backward()
        assert rows.take() == 7
        with torch.no_grad():
            model(**batch(rows=5))
        model.eval()
        model(**batch(rows=6))
        assert rows.take() == 0
    model.train()
    model(**batch(rows=4))
    assert rows.take() == 0


def test_a_head_that_is_left_out_does_not_matter() -> None:
    model = adapted()
    model.train()
    with RowCounter(model) as rows:
        model.get_base_model().model(input_ids=batch(rows=2)["input_ids"])
        assert rows.take() == 2


def test_checkpointing_of_gradients_counts_once() -> None:
    model = adapted()
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model.train()
    with RowCounter(model) as rows:
        model(**batch(rows=4)).loss.backward()
        assert rows.take() == 4


def test_rows_that_lie_one_behind_the_other_are_counted_by_where_they_begin() -> None:
    model = adapted()
    model.train()
    ids = torch.randint(0, 32, (1, 9))
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3]])
    with RowCounter(model) as rows:
        model(input_ids=ids, position_ids=positions)
        assert rows.take() == 3
        # A single row that is padded has a mask.
        model(input_ids=ids, position_ids=positions, attention_mask=torch.ones(1, 9))
        assert rows.take() == 1


def test_bounds_of_rows_are_taken_where_they_are_given() -> None:
    class Body(nn.Module):
        def forward(self, input_ids: Any, **kwargs: Any) -> Any:
            return input_ids

    model = Body()
    with RowCounter(model) as rows:
        model(torch.zeros(1, 9), cu_seq_lens_q=torch.tensor([0, 3, 5, 9]))
        assert rows.take() == 3
        model(torch.zeros(5, 9))
        assert rows.take() == 5
        with pytest.raises(InputError, match="without tensors"):
            model("words")


def test_pairs_are_one_row() -> None:
    class DPOConfig:
        pass

    class Mine(DPOConfig):
        pass

    assert (sequences_per_row(Mine()), sequences_per_row(object())) == (2, 1)
    model = adapted()
    model.train()
    with RowCounter(model, sequences_per_row=2) as rows:
        model(**batch(rows=6))
        assert rows.take() == 3
    with pytest.raises(InputError):
        RowCounter(model, sequences_per_row=0)


def test_the_body_is_found_through_wrappers() -> None:
    model = adapted()
    wrapper = nn.Module()
    wrapper.module = model
    assert body_of(wrapper) is body_of(model) is model.get_base_model().model
