"""What the tests of the programs share: the shipped tokenizer, and rows as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.libraries import required
from tunefleet.workloads import assets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

required("torch")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    from tunefleet.workloads.common import base_model

    name = "builtin:gsm8k-llama-2m"
    return base_model.load_tokenizer(base_model.Source(name, str(assets.locate(name, "model"))))


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: Iterable[Any], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
