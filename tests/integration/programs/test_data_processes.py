"""Processes that prepare data give what one process gives, in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from transformers import PreTrainedTokenizerBase

from tests.unit.programs.conftest import tokenizer
from tests.unit.programs.test_streams import encoder, files, ranks_share
from tests.unit.programs.test_tokens import PAIRS
from tunefleet.programs.data.tokens import Encoder, tokenize

__all__ = ["encoder", "files", "tokenizer"]

pytestmark = pytest.mark.torch


def test_several_processes_give_the_same_tokens_in_the_same_order(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rows = [{"prompt": str(number), "response": str(number)} for number in range(1200)]
    one, two = (tokenize(rows, PAIRS, Encoder(tokenizer), 64, processes).dataset for processes in (None, 2))
    assert one["input_ids"][:] == two["input_ids"][:]


def test_ranks_whose_rows_another_process_reads_share_the_samples_and_go_on_together(
    files: dict[str, Path],
    encoder: Encoder,
) -> None:
    ranks_share(files, encoder, workers=1)
