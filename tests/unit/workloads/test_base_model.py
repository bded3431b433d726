"""What is refused before it is put on a base model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tunefleet.errors import ModelError

WHOLE = save({"base_model.model.embed_tokens.weight": np.zeros((7, 2), np.float32)})


@pytest.mark.torch
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (b"", "The weights of the adapter a cannot be read: "),
        (b"torn", "The weights of the adapter a cannot be read: "),
        (WHOLE[:-3], "The weights of the adapter a cannot be read: "),
        (b"\xff" * 64, "The weights of the adapter a cannot be read: "),
        (WHOLE, "has embeddings for 7 tokens, but the model has 5"),
    ],
)
def test_an_adapter_that_cannot_be_read_is_the_users_to_mend(tmp_path: Path, weights: bytes, message: str) -> None:
    from tunefleet.workloads.common.base_model import require_same_vocabulary

    (tmp_path / "adapter_model.safetensors").write_bytes(weights)
    with pytest.raises(ModelError, match=message):
        require_same_vocabulary(tmp_path, 5, "a")


@pytest.mark.torch
def test_an_adapter_for_as_many_tokens_is_taken(tmp_path: Path) -> None:
    from tunefleet.workloads.common.base_model import require_same_vocabulary

    (tmp_path / "adapter_model.safetensors").write_bytes(WHOLE)
    require_same_vocabulary(tmp_path, 7, "a")
