"""Makes a Llama with random weights and the shipped tokenizer."""

from __future__ import annotations

from pathlib import Path


def make(folder: Path, *, hidden: int, intermediate: int, layers: int, heads: int, shared: int, length: int) -> Path:
    """Write the model into a folder, as `save_pretrained` does; returns the folder.

    Args:
        folder: Where.
        hidden: Size of a token's vector.
        intermediate: Size between the two halves of a feed-forward layer.
        layers: How many.
        heads: Of attention, in each.
        shared: Heads that have keys and values of their own.
        length: Most tokens of a row.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tunefleet.workloads import assets
    from tunefleet.workloads.common import base_model

    torch.manual_seed(0)
    source = base_model.Source(folder.name, str(assets.locate("builtin:gsm8k-llama-2m", "model")))
    tokenizer = base_model.load_tokenizer(source)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
