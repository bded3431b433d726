"""Rollouts: prompts with sampled answers, their rewards per token, advantages (GAE) and the clipped loss of PPO."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Rollout:
    """A batch of prompts with their answers; answers start at the same column in all rows."""

    ids: torch.Tensor
    seen: torch.Tensor
    context: int
    answered: torch.Tensor
    texts: list[str]
    ended: list[bool]

    @property
    def answers(self) -> torch.Tensor:
        """The answer tokens."""
        return self.ids[:, self.context :]

    @property
    def lengths(self) -> torch.Tensor:
        """Number of tokens of each answer, at least one."""
        return self.answered.sum(1)

    def part(self, rows: Sequence[int] | slice) -> Rollout:
        """Return a subset of rows, without their texts."""
        return replace(self, ids=self.ids[rows], seen=self.seen[rows], answered=self.answered[rows], texts=[], ended=[])


def pad_left(prompts: Sequence[Sequence[int]], padding: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad prompts on the left, as generation requires; returns tokens and attention mask."""
    width = max(len(ids) for ids in prompts)
    rows = [[padding] * (width - len(ids)) + list(ids) for ids in prompts]
    seen = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    return torch.tensor(rows, device=device), torch.tensor(seen, device=device)


def collect(
    prompts: torch.Tensor,
    seen: torch.Tensor,
    sampled: Sequence[torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    end_ids: Collection[int],
    stops: Sequence[str],
) -> Rollout:
    """Concatenate prompts and their answers."""
    width = max(group.shape[1] for group in sampled)
    padding = int(tokenizer.pad_token_id or 0)
    wide = [torch.nn.functional.pad(group, (0, width - group.shape[1]), value=padding) for group in sampled]
    answers = torch.cat(wide)
    # Each row is cut at the width of its own group: the padding behind it may equal the end token.
    limits = [group.shape[1] for group in sampled for _ in range(group.shape[0])]
    ends = [_end(row[:limit], tokenizer, end_ids, stops) for row, limit in zip(answers.tolist(), limits, strict=True)]
    lengths = torch.tensor([length for length, _, _ in ends], device=answers.device)
    answered = torch.arange(width, device=answers.device) < lengths.unsqueeze(1)
    return Rollout(
        ids=torch.cat([prompts, answers.masked_fill(~answered, padding)], 1),
        seen=torch.cat([seen, answered.long()], 1),
        context=prompts.shape[1],
        answered=answered,
        texts=[text for _, text, _ in ends],
        ended=[ended for _, _, ended in ends],
    )


def _end(
    ids: list[int], tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int], stops: Sequence[str]
) -> tuple[int, str, bool]:
    """Return an answer's number of tokens, its text, and whether it ended before the token limit."""
    last = next((place for place, token in enumerate(ids) if token in end_ids), None)
    ended = last is not None
    ids = ids if last is None else ids[: last + 1]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    if not places:
        return len(ids), text, ended
    # The smallest number of tokens whose text contains the stop string; a token may extend beyond it.
    count = next(
        count
        for count in range(1, len(ids) + 1)
        if any(stop in tokenizer.decode(ids[:count], skip_special_tokens=True) for stop in stops)
    )
    return count, text[: min(places)], True


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


def clipped_loss(
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
