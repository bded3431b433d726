"""Vectors of models that were not made for them, up to the longest text that they take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tunefleet.spec.tasks.retrieval import VectorSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global open_encoder, torch, transformers
    pytest.importorskip("torch")

    import torch
    import transformers

    from tunefleet.workloads.embedding.encoder import open_encoder


pytestmark = pytest.mark.torch

POSITIONS = 34
LONG = "Anna has seven apples and gives three of them to her brother. " * 9


def make(folder: Path, tokenizer: PreTrainedTokenizerBase, kind: Any, config: Any, **given: Any) -> str:
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    kind(config(vocab_size=len(tokenizer), max_position_embeddings=POSITIONS, **small, **given)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "padding", "takes"),
    [
        # Its positions begin behind that of the padding: two of those in its config are none.
        pytest.param("Roberta", 1, POSITIONS - 2, id="roberta"),
        pytest.param("Bert", 0, POSITIONS, id="bert"),
    ],
)
def test_a_text_that_is_too_long_is_cut_to_the_positions_that_the_model_has(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, kind: str, padding: int, takes: int
) -> None:
    model, config = getattr(transformers, f"{kind}Model"), getattr(transformers, f"{kind}Config")
    folder = make(tmp_path / "model", tokenizer, model, config, pad_token_id=padding)
    encoder = open_encoder("small", folder, VectorSpec(normalize=False))
    around = tokenizer.num_special_tokens_to_add()
    vectors = encoder.encode([LONG, "short"])
    assert (encoder.cut, encoder.model.longest) == (1, takes - around)
    ids = torch.tensor([tokenizer(LONG)["input_ids"][:takes]])
    with torch.inference_mode():
        states = model.from_pretrained(folder)(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    assert vectors[0] == pytest.approx(states[0].mean(0).numpy(), abs=1e-5), "no token more, and none less"
    assert np.isfinite(vectors).all()


def test_a_text_whose_cut_makes_more_tokens_is_still_taken(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "model", tokenizer, transformers.RobertaModel, transformers.RobertaConfig, pad_token_id=1)
    encoder = open_encoder("small", folder, VectorSpec())
    # As if the tokens of the whole text were twice as long as those of its beginning.
    monkeypatch.setattr(encoder.model, "offsets", lambda text: [(at, at + 12) for at in range(0, len(text), 12)])
    assert np.isfinite(encoder.encode([LONG])).all()
