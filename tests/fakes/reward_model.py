"""Makes a tiny reward model: a sequence classifier of two layers over the tokenizer of the built-in model.

    python -m tests.fakes.reward_model FOLDER

It is trained for a moment to like answers with digits, so that its rewards say something and a training can raise them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

BUILTIN = "builtin:gsm8k-llama-2m"
STEPS = 60


def make(folder: Path, labels: tuple[str, ...] = ("NEGATIVE", "POSITIVE"), steps: int = STEPS) -> Path:
    """Write the model; returns its folder."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    from tunefleet.workloads import assets

    tokenizer = AutoTokenizer.from_pretrained(assets.locate(BUILTIN, "model"))
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForSequenceClassification(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=256,
                pad_token_id=padding,
                id2label=dict(enumerate(labels)),
                label2id={name: index for index, name in enumerate(labels)},
                num_labels=len(labels),
            )
        )
        _teach(model, tokenizer, padding, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _teach(model: object, tokenizer: object, padding: int, steps: int) -> None:
    import torch

    draw = random.Random(0)
    words = ("the", "of", "and", "has", "many", "how", "apples", "per", "day", "each", "buys", "left", "more")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        digits = [draw.random() < 0.5 for _ in range(16)]
        texts = [
            " ".join(str(draw.randrange(100)) if good else draw.choice(words) for _ in range(8)) for good in digits
        ]
        rows = [tokenizer(text)["input_ids"] for text in texts]
        width = max(map(len, rows))
        ids = torch.tensor([row + [padding] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        logits = model(input_ids=ids, attention_mask=mask).logits
        if logits.shape[1] == 1:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], torch.tensor(digits).float())
        else:
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(digits).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
