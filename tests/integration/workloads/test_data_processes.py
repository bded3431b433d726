"""Processes that prepare data give what one process gives, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.workloads import test_streams, test_tokens
from tests.unit.workloads.conftest import tokenizer
from tests.unit.workloads.test_streams import encoder, files
from tests.unit.workloads.test_streams import libraries as libraries_of_streams
from tests.unit.workloads.test_tokens import libraries as libraries_of_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tunefleet.workloads.data.tokenization import Encoder

__all__ = ["encoder", "files", "libraries_of_streams", "libraries_of_tokens", "tokenizer"]

pytestmark = pytest.mark.torch


def test_several_processes_give_the_same_tokens_in_the_same_order(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"prompt": str(number), "response": str(number)} for number in range(1200)]
    one, two = (
        test_tokens.tokenize(rows, test_tokens.PAIRS, test_tokens.Encoder(tokenizer), 64, processes).dataset
        for processes in (None, 2)
    )
    assert one["input_ids"][:] == two["input_ids"][:]


def test_ranks_whose_rows_another_process_reads_share_the_samples_and_go_on_together(
    files: dict[str, Path], encoder: Encoder
) -> None:
    test_streams.ranks_share(files, encoder, workers=1)
