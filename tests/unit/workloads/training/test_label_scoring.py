"""Scoring labelled positions alone gives the loss and gradients of all positions."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global LoraConfig, add_fused_lm_head, get_peft_model, label_scores, torch, transformers
    pytest.importorskip("torch")

    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    from trl.trainer.utils import add_fused_lm_head

    from tunefleet.workloads.training import label_scores


pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out"),
]
VOCABULARY = 97
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaConfig": {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "GPT2Config": {
        "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0,
        "attn_pdrop": 0,
    },
    # Soft caps on its logits.
    "Gemma2Config": {
        **SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 3.0,
    },
    # Scales them.
    "GraniteConfig": {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "logits_scaling": 4.0},
}  # fmt: skip


def model(name: str, *, lora: bool) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, name)(**ARCHITECTURES[name], pad_token_id=0)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    if lora:
        made = get_peft_model(made, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    return made.train()


def batch(packed: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (3, 12), generator=generator)
    labels = torch.where(torch.rand(ids.shape, generator=generator) < 0.3, ids, -100)
    if packed:
        positions = torch.tensor([[*range(5), *range(7)]]).expand(3, -1)
        return {"input_ids": ids, "labels": labels, "position_ids": positions}
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    labels[1, 8:] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def gradients(made: Any) -> dict[str, Any]:
    found = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    made.zero_grad()
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_loss_and_gradients_are_those_of_all_positions(name: str, lora: bool, packed: bool) -> None:
    made, inputs = model(name, lora=lora), batch(packed)
    plain = made(**inputs, use_cache=False).loss
    plain.backward()
    wanted = gradients(made)
    inner = made.get_base_model() if lora else made
    add_fused_lm_head(inner, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    theirs = made(**inputs, fused_lm_head=True)
    label_scores.score_labels_only(made)
    calls: list[tuple[int, ...]] = []
    inner.get_output_embeddings().register_forward_hook(lambda _, given, __: calls.append(tuple(given[0].shape)))
    ours = made(**inputs, fused_lm_head=True)
    count = int((inputs["labels"][:, 1:] != -100).sum())
    assert [shape[0] for shape in calls] == [count], "no other position was scored"
    ours.loss.backward()
    found = gradients(made)
    torch.testing.assert_close(ours.loss, plain)
    assert found.keys() == wanted.keys()
    for key, gradient in wanted.items():
        torch.testing.assert_close(found[key], gradient, atol=2e-6, rtol=2e-4)
    for field in ("log_probs", "entropy", "mean_logits", "is_top1", "label_mask"):
        torch.testing.assert_close(getattr(ours, field), getattr(theirs, field), atol=1e-5, rtol=1e-4)


def test_a_count_of_all_accumulated_batches_divides_the_loss() -> None:
    made, inputs = model("LlamaConfig", lora=True), batch(packed=False)
    add_fused_lm_head(made.get_base_model())
    label_scores.score_labels_only(made)
    whole = -made(**inputs, fused_lm_head=True).log_probs.sum()
    divided = made(**inputs, fused_lm_head=True, num_items_in_batch=50).loss
    torch.testing.assert_close(divided, whole / 50)


def test_a_batch_without_a_label_has_no_loss_and_no_gradient() -> None:
    made, inputs = model("LlamaConfig", lora=True), batch(packed=False)
    inputs["labels"] = torch.full_like(inputs["labels"], -100)
    add_fused_lm_head(made.get_base_model())
    label_scores.score_labels_only(made)
    loss = made(**inputs, fused_lm_head=True).loss
    loss.backward()
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients(made).values())


def test_what_takes_too_much_memory_is_left_to_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    made, inputs = model("LlamaConfig", lora=True), batch(packed=False)
    add_fused_lm_head(made.get_base_model())
    label_scores.score_labels_only(made)
    small = made(**inputs, fused_lm_head=True).loss
    monkeypatch.setattr(label_scores, "MAX_BYTES", 0)
    torch.testing.assert_close(made(**inputs, fused_lm_head=True).loss, small)


def test_answers_are_made_as_before() -> None:
    made, inputs = model("LlamaConfig", lora=True), batch(packed=False)
    made.eval()
    logits = made(input_ids=inputs["input_ids"]).logits
    add_fused_lm_head(made.get_base_model())
    label_scores.score_labels_only(made)
    torch.testing.assert_close(made(input_ids=inputs["input_ids"]).logits, logits)
    assert made.generate(input_ids=inputs["input_ids"][:1], max_new_tokens=3, do_sample=False).shape[1] == 15
