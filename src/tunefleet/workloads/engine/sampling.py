"""Samples the next token of each row in a batch, with its own parameters and random generator.

A row with a seed gets the same answer, whatever other rows are in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from tunefleet.workloads.engine.batch_rows import Row
from tunefleet.workloads.engine.protocol import TokenLogprob
from tunefleet.workloads.faults import ClientGoneError

# Default of `top_k`.
TOP_K = 50
# Bounds the time of a step in which nearly every token would complete a bad word.
_MAX_REJECTED = 1000


class TokenSampler(LogitsProcessor):
    """Samples the tokens of a batch; masks all others, so that greedy search selects them."""

    def __init__(self, rows: Sequence[Row], tokenizer: Any, gone: Callable[[], bool]) -> None:
        self._rows = rows
        self._tokenizer = tokenizer
        self._gone = gone
        self._filter: _TokenFilter | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Sample a token for each row that has not ended."""
        if self._gone():
            raise ClientGoneError
        live = [(at, row) for at, row in enumerate(self._rows) if row.finish is None]
        wanted = [(at, row) for at, row in live if row.sampling.logprobs is not None]
        # The maximum of a row is NaN or infinite if any of its logits is NaN or plus infinity.
        sound = torch.isfinite(scores.amax(dim=-1)).tolist()
        raw = {at: torch.log_softmax(scores[at], dim=-1) for at, _ in wanted}
        for at, row in live:
            _mask_forbidden(scores[at], row)
            _apply_penalties(scores[at], row)
        tokens = self._sample(scores)
        for at, row in live:
            if not sound[at]:
                row.give_up()
                continue
            if not torch.isfinite(scores[at, tokens[at]]):
                row.abort()
                continue
            # A bad word may span several tokens, so it is only known once a token is sampled.
            if row.completes_bad_word(tokens[at]):
                tokens[at] = self._resample(scores[at], row, tokens[at])
            if at in raw and row.finish is None:
                row.logprobs.append(self._likeliest(raw[at], tokens[at], row.sampling.logprobs or 0))
            if row.finish is None:
                row.take(tokens[at])
        only = torch.full_like(scores, -torch.inf)
        only.scatter_(1, torch.tensor(tokens, device=scores.device).unsqueeze(1), 0.0)
        return only

    def _sample(self, scores: torch.Tensor) -> list[int]:
        likeliest = scores.argmax(dim=-1)
        if all(row.sampling.temperature == 0 for row in self._rows):
            return _listed(likeliest)
        if self._filter is None:
            self._filter = _TokenFilter(self._rows, scores)
        sampled = self._filter.sample(scores, [row.rng.random() if row.finish is None else 0.0 for row in self._rows])
        return _listed(torch.where(self._filter.greedy, likeliest, sampled))

    def _resample(self, scores: torch.Tensor, row: Row, token: int) -> int:
        token_filter = _TokenFilter([row], scores.unsqueeze(0))
        for _ in range(_MAX_REJECTED):
            scores[token] = -torch.inf
            if not torch.isfinite(scores.max()):
                break
            token = int(scores.argmax())
            if row.sampling.temperature != 0:
                token = int(token_filter.sample(scores.unsqueeze(0), [row.rng.random()])[0])
            if not row.completes_bad_word(token):
                return token
        row.abort()
        return token

    def _likeliest(self, logprobs: torch.Tensor, sampled: int, count: int) -> list[TokenLogprob]:
        found = torch.topk(logprobs, count).indices.tolist() if count else []
        return [
            {"token": self._tokenizer.decode([token]), "id": token, "logprob": float(logprobs[token])}
            for token in dict.fromkeys([*found, sampled])
        ]


class FinishedRows(StoppingCriteria):
    """Stops rows that have ended, and lets other threads use the model between two steps.

    Args:
        is_over: Whether to stop all rows now; those that have not ended continue in another call.
    """

    def __init__(self, rows: Sequence[Row], between: Callable[[], None], is_over: Callable[[], bool]) -> None:
        self._rows = rows
        self._between = between
        self._is_over = is_over

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return for each row whether it has ended."""
        self._between()
        over = self._is_over()
        return torch.tensor([over or row.finish is not None for row in self._rows], device=input_ids.device)


class _TokenFilter:
    """Samples among the tokens that `top_k`, `top_p` and `min_p` leave."""

    def __init__(self, rows: Sequence[Row], scores: torch.Tensor) -> None:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=scores.device, dtype=torch.float32).unsqueeze(1)

        width = scores.shape[-1]
        asked = [TOP_K if row.sampling.top_k is None else row.sampling.top_k for row in rows]
        most = [width if k <= 0 else min(k, width) for k in asked]
        self._count = max(most)
        self._top_k = column([float(k) for k in most])
        self._top_p = column([row.sampling.top_p for row in rows])
        self._min_p = column([row.sampling.min_p for row in rows])
        self._temperature = column([row.sampling.temperature or 1.0 for row in rows])
        self.greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=scores.device)

    def sample(self, scores: torch.Tensor, uniform: list[float]) -> torch.Tensor:
        """Sample a token for each row."""
        # Inverse transform sampling with one uniform number per row: the result depends on that row only, unlike
        # `torch.multinomial`, which draws from one generator for the batch. Double precision keeps small steps.
        best, order = torch.topk(scores / self._temperature, self._count, dim=-1)
        rank = torch.arange(self._count, device=scores.device)
        probabilities = torch.softmax(best.masked_fill(rank >= self._top_k, -torch.inf).double(), dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        out = (before >= self._top_p) | (probabilities < self._min_p * probabilities[:, :1])
        out[:, 0] = False
        ladder = probabilities.masked_fill(out, 0.0).nan_to_num(0.0).cumsum(dim=-1)
        height = torch.tensor(uniform, device=scores.device, dtype=torch.float64).unsqueeze(1) * ladder[:, -1:]
        place = torch.searchsorted(ladder, height, right=True).clamp(max=self._count - 1)
        # The search may end at a masked token with zero width: the last token that is not masked comes before it.
        place = torch.minimum(place, ((~out).sum(dim=-1, keepdim=True) - 1).clamp(min=0))
        return order.gather(1, place).squeeze(1)


def _mask_forbidden(scores: torch.Tensor, row: Row) -> None:
    ends = [] if row.may_end else sorted(row.ends)
    if row.matcher is not None:
        allowed = row.matcher.allowed()
        longer = allowed.copy()
        longer[[token for token in ends if token < len(longer)]] = False
        # A complete JSON object ends, even if it is shorter than `min_tokens`.
        kept = torch.from_numpy(longer if longer.any() else allowed).to(scores.device)
        scores[: kept.shape[0]].masked_fill_(~kept, -torch.inf)
        scores[kept.shape[0] :] = -torch.inf
    elif ends:
        scores[torch.tensor(ends, device=scores.device)] = -torch.inf


def _apply_penalties(scores: torch.Tensor, row: Row) -> None:
    sampling = row.sampling
    again = sampling.repetition_penalty
    if again is not None and again != 1:
        seen = torch.tensor(sorted({*row.prompt, *row.counts}), device=scores.device)
        found = scores[seen]
        scores[seen] = torch.where(found < 0, found * again, found / again)
    if row.counts and (sampling.presence_penalty or sampling.frequency_penalty):
        seen = torch.tensor(list(row.counts), device=scores.device)
        often = torch.tensor(list(row.counts.values()), device=scores.device, dtype=scores.dtype)
        scores[seen] -= sampling.presence_penalty + sampling.frequency_penalty * often


def _listed(tokens: torch.Tensor) -> list[int]:
    found: list[int] = tokens.tolist()
    return found
