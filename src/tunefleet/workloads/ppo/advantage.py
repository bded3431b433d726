"""The math of PPO on a batch of answers: rewards per token, advantages (GAE), and the clipped loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class RolloutValues:
    """Values of a batch from before its optimizer steps; shape rows × answer tokens, `scores` has one per row."""

    logprobs: torch.Tensor
    kl: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    scores: torch.Tensor


def rollout_values(
    args: Any,
    answered: torch.Tensor,
    logprobs: torch.Tensor,
    reference: torch.Tensor,
    values: torch.Tensor,
    scores: torch.Tensor,
) -> RolloutValues:
    """Compute rewards and advantages."""
    counted = answered.float()
    # k1 is unbiased but noisy and may be negative; k3 (Schulman 2020) is unbiased and never negative.
    difference = (logprobs - reference) * counted
    kl = difference if args.kl_estimator == "k1" else (torch.exp(-difference) - 1 + difference) * counted
    rewards = -args.kl_coef * kl
    # The reward model scores the whole answer, so its score goes to the last token.
    last = answered.sum(1) - 1
    rows = torch.arange(rewards.shape[0], device=rewards.device)
    rewards[rows, last] += scores
    values = values * counted
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(scores)
    for column in reversed(range(rewards.shape[1])):
        following = values[:, column + 1] if column + 1 < rewards.shape[1] else torch.zeros_like(scores)
        delta = rewards[:, column] + args.gamma * following - values[:, column]
        running = (delta + args.gamma * args.lam * running) * counted[:, column]
        advantages[:, column] = running
    returns = (advantages + values) * counted
    return RolloutValues(logprobs, kl, values, _whiten(advantages, counted), returns, scores)


def _whiten(advantages: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    total = counted.sum()
    if total < 2:  # a single token has no variance
        return advantages
    mean = (advantages * counted).sum() / total
    variance = (((advantages - mean) ** 2) * counted).sum() / (total - 1)
    return (advantages - mean) * torch.rsqrt(variance + 1e-8) * counted


def loss(
    args: Any, known: RolloutValues, rows: Any, answered: torch.Tensor, logprobs: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss summed over the tokens of some rows, and sums of the logged metrics."""
    counted = answered.float()
    drift = (logprobs - known.logprobs[rows]) * counted
    ratio = torch.exp(drift)
    advantages = known.advantages[rows]
    plain, held = -advantages * ratio, -advantages * torch.clamp(ratio, 1 - args.cliprange, 1 + args.cliprange)
    policy = (torch.max(plain, held) * counted).sum()
    before, target = known.values[rows], known.returns[rows]
    near = torch.clamp(values, before - args.cliprange_value, before + args.cliprange_value)
    errors, near_errors = (values - target) ** 2, (near - target) ** 2
    value = 0.5 * (torch.max(errors, near_errors) * counted).sum()
    with torch.no_grad():
        sums = {
            "policy_loss": policy,
            "value_loss": value,
            "clipped": ((held > plain).float() * counted).sum(),
            "drift": 0.5 * (drift**2).sum(),
        }
    return policy + args.vf_coef * value, {name: each.detach() for name, each in sums.items()}
