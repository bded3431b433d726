"""Computes logits only at labelled positions, also on CPUs.

With completion-only loss most positions have no label. TRL's fused head skips them on devices with Triton and computes
every position elsewhere, so on a CPU 20–25 % of a small model's arithmetic goes into unused logits. Here a hook passes
only the hidden states of labelled positions to the model's own head, so soft caps and scales of logits still apply.

Log-probabilities and gradients equal those of all positions up to rounding. Unlike TRL's, the backward pass does not
compute the logits a second time.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Final

import torch
from peft import PeftModel
from torch import nn

# Largest buffer of probabilities; a larger batch is computed by TRL, tile by tile.
MAX_BYTES: Final = 256 << 20
# Rows per iteration, which bounds temporary memory.
_ROWS: Final = 64
IGNORED: Final = -100
# A mixture of experts adds a router loss, which TRL computes from all positions.
_ROUTED: Final = "output_router_logits"


def score_labels_only(model: nn.Module) -> None:
    """Patch a model on a CPU that has TRL's fused head to compute labelled positions only."""
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    if inner.device.type != "cpu":
        return
    fused = inner.forward

    @functools.wraps(fused)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        labels = kwargs.get("labels")
        if not fused_lm_head or labels is None or kwargs.get("shift_labels") is not None or kwargs.get(_ROUTED):
            return fused(*args, fused_lm_head=fused_lm_head, **kwargs)
        mask = labels[:, 1:] != IGNORED
        head = self.get_output_embeddings()
        if int(mask.sum()) * head.weight.shape[0] * 4 > MAX_BYTES:
            return fused(*args, fused_lm_head=True, **kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        del kwargs["labels"]
        handle = head.register_forward_pre_hook(lambda _, given: (given[0][:, :-1][mask], *given[1:]))
        try:
            logits = fused(*args, **{**kwargs, "use_cache": False}).logits
        finally:
            handle.remove()
        return _output(logits, labels[:, 1:], mask, items)

    model_forward: Any = types.MethodType(forward, inner)
    inner.forward = model_forward


def _output(logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, items: Any) -> Any:
    # Imported here: the older TRL in the environment for PPO does not have it.
    from trl.trainer.utils import FusedCausalLMOutput

    scores = _Scores.apply(logits, labels[mask])
    log_probs, entropy, mean_logits, is_top1 = (
        each.new_zeros(mask.shape).masked_scatter(mask, each) for each in scores
    )
    loss = -log_probs.sum() / (mask.sum().clamp(min=1) if items is None else items)
    return FusedCausalLMOutput(
        loss=loss, log_probs=log_probs, entropy=entropy, mean_logits=mean_logits, is_top1=is_top1, label_mask=mask
    )


class _Scores(torch.autograd.Function):
    """Log-probability of each label, with logged values: entropy, mean logit, whether the label is the top token."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = len(labels)
        probabilities = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        log_probs, entropy, mean = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
        top = torch.empty(rows, dtype=torch.bool, device=logits.device)
        for start in range(0, rows, _ROWS):
            part = slice(start, start + _ROWS)
            own, wanted = logits[part].float(), labels[part]
            log_sum = own.logsumexp(dim=-1)
            chosen = own.gather(1, wanted[:, None])[:, 0]
            mean[part] = own.mean(dim=-1)
            top[part] = own.argmax(dim=-1) == wanted
            share = torch.exp(own - log_sum[:, None], out=probabilities[part])
            entropy[part] = log_sum - (share * own).sum(dim=-1)
            log_probs[part] = chosen - log_sum
        ctx.save_for_backward(probabilities, labels)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(entropy, mean, top)
        return log_probs, entropy, mean, top

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None]:
        probabilities, labels = ctx.saved_tensors
        gradient = gradient.float()
        # In place: the saved probabilities are the largest buffer, and backward runs once.
        logit_gradient = probabilities.mul_(-gradient[:, None])
        logit_gradient[torch.arange(len(labels), device=labels.device), labels] += gradient
        return logit_gradient.to(ctx.dtype), None
