"""Rollouts: prompts with sampled answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

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
