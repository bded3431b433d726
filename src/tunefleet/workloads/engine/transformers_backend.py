"""In-process engine with Transformers, for CPUs and wherever vLLM is not available."""

from __future__ import annotations

import dataclasses
import gc
import logging
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import psutil
import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from tunefleet.errors import InputError
from tunefleet.workloads.common.base_model import Source, context_length, embedding_rows, load_tokenizer
from tunefleet.workloads.engine import weights
from tunefleet.workloads.engine.batch_rows import Row
from tunefleet.workloads.engine.prompt_encoder import Prompts
from tunefleet.workloads.engine.protocol import Answer, Choice, EngineModel, Request
from tunefleet.workloads.engine.sampling import FinishedRows, TokenSampler
from tunefleet.workloads.engine.stream_batch import Round, StreamBatch, StreamedRow
from tunefleet.workloads.engine.structured_output import Grammars
from tunefleet.workloads.engine.weights import Adapters
from tunefleet.workloads.faults import RequestError

logger = logging.getLogger(__name__)

Gone = Callable[[], bool]
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")

_LOST = "CUDA error"
_MOST_ROWS = {"cuda": 256, "cpu": 32, "mps": 32}
_PART_OF_FREE = {"cuda": 0.8, "cpu": 0.4, "mps": 0.4}
# Float32 tensors of vocabulary width that sampling a token allocates.
_WORK_COPIES = 6


def never_gone() -> bool:
    """Return False: the caller is always connected."""
    return False


class TransformersEngine:
    """A model loaded with Transformers. Thread-safe: concurrent calls take turns at the model step by step."""

    name = "transformers"
    broken: Exception | None = None
    """The error after which the engine cannot answer any more."""

    def __init__(self, model: EngineModel, source: Source, say: Callable[[str], None]) -> None:
        self._say = say
        tokenizer = load_tokenizer(source)
        tokenizer.padding_side = "left"
        loaded = weights.load(source, model.options)
        ends = _ends(loaded, tokenizer)
        self._adapters = Adapters(loaded, model.adapters)
        self._model: Any = self._adapters.model
        self._tokenizer = tokenizer
        vocabulary = embedding_rows(source)
        self._prompts = Prompts(tokenizer, context_length(source), self._adapters.names, vocabulary)
        self._ends = ends
        self._grammars = Grammars(tokenizer, self._model.config.get_text_config().vocab_size, ends)
        self._budget = Budget(self._model)
        self._model_lock = FairLock()
        self._batches: dict[str | None, StreamBatch] = {}
        self._opening = threading.Lock()
        # The model's own generation defaults would override parameters that a request leaves out.
        self._model.generation_config = GenerationConfig(pad_token_id=tokenizer.pad_token_id, do_sample=False)

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the chat template; see `Engine.render`."""
        return self._prompts.render(messages, **kwargs)

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._prompts.has_template

    def generate(self, requests: Sequence[Request], *, gone: Gone = never_gone) -> Iterator[Answer]:
        """Answer requests, batch by batch; see `Engine.generate`."""
        rows = [row for request in requests for row in self._rows(request)]
        open_rows: dict[int, list[Row]] = {}
        for row in rows:
            open_rows.setdefault(id(row.request), []).append(row)
        waiting = in_order(rows)
        while waiting:
            count = self._budget.next_batch(waiting)
            batch = waiting[:count]
            if not self._answer(batch, gone):
                continue  # with a smaller batch
            waiting = waiting[count:]
            asked = [open_rows[each] for each in dict.fromkeys(id(row.request) for row in batch)]
            complete = [rows for rows in asked if all(row.finish is not None for row in rows)]
            # Failed requests come last: raising ends the call, and the others must have been yielded by then.
            for together in sorted(complete, key=lambda rows: any(row.broken for row in rows)):
                choices = tuple(row.choice() for row in together)
                yield Answer(together[0].request.key, choices, len(together[0].prompt))

    def stream(self, request: Request, *, gone: Gone = never_gone) -> Generator[str, None, Choice]:
        """Stream the answer to one request; returns the full answer."""
        if request.sampling.n != 1:
            raise RequestError("Only a single answer can be streamed.", key=request.key, hint="Remove `n`.")
        row = self._rows(request)[0]
        pieces: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        left = threading.Event()

        def ended(error: BaseException | None) -> None:
            pieces.put(row.detokenizer.piece(last=True))
            pieces.put(error)

        streamed = StreamedRow(
            row,
            gone=lambda: left.is_set() or gone(),
            after_step=lambda: pieces.put(row.detokenizer.piece(last=False)),
            ended=ended,
        )
        self._streams(request.adapter).add(streamed)
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                if piece:
                    yield piece
            return dataclasses.replace(row.choice(), prompt_tokens=len(row.prompt))
        finally:
            left.set()

    def _streams(self, adapter: str | None) -> StreamBatch:
        with self._opening:
            if adapter not in self._batches:
                self._batches[adapter] = StreamBatch(self._run_round, self._budget.next_batch, self._shrink)
            return self._batches[adapter]

    def _run_round(self, current: Round) -> None:
        rows = [each.row for each in current.rows]
        adapter = rows[0].request.adapter

        def between() -> None:
            current.after_step()
            if self._model_lock.offer():
                self._adapters.use(adapter)

        self._model_lock.take()
        try:
            self._adapters.use(adapter)
            with torch.inference_mode():
                self._round(rows, never_gone, between, current.is_over)
        except RuntimeError as error:
            if _is_lost(error):
                self.broken = error
            raise
        finally:
            self._model_lock.give()

    def _shrink(self, error: BaseException, rows: int) -> bool:
        if not _is_out_of_memory(error) or rows == 1:
            return False
        self._say(f"Out of memory with a batch size of {rows}: reduced to {self._budget.halve(rows)}.")
        _collect()
        return True

    def close(self) -> None:
        """Free memory and devices."""
        self._model = self._adapters = self._budget = None  # type: ignore[assignment]
        _collect()

    def _rows(self, request: Request) -> list[Row]:
        self._prompts.check(request)
        tokens = self._prompts.tokens(request)
        limit = self._prompts.limit(request, tokens)
        ends = self._ends | set(request.sampling.stop_token_ids)
        schema = request.sampling.schema
        try:
            grammar = None if schema is None else self._grammars.read(schema)
        except InputError as error:
            raise RequestError(error.message, key=request.key, hint=error.hint) from error
        return [
            Row(request, index, tokens, limit, ends, self._tokenizer, grammar) for index in range(request.sampling.n)
        ]

    def _answer(self, batch: list[Row], gone: Gone) -> bool:
        """Generate the answers of a batch; returns False if it must be smaller."""
        adapter = batch[0].request.adapter
        for row in batch:
            row.begin()

        def between() -> None:
            if self._model_lock.offer():
                # The other thread may have selected another adapter.
                self._adapters.use(adapter)

        self._model_lock.take()
        try:
            self._adapters.use(adapter)
            self._compute(batch, gone, between)
        except (RuntimeError, MemoryError) as error:
            if _is_lost(error):
                self.broken = error
            if not _is_out_of_memory(error) or len(batch) == 1:
                raise
        else:
            return True
        finally:
            self._model_lock.give()
        # Outside the handler: the traceback keeps references to tensors, whose memory is freed here.
        fewer = self._budget.halve(len(batch))
        self._say(f"Out of memory with a batch size of {len(batch)}: reduced to {fewer}.")
        _collect()
        return False

    @torch.inference_mode()
    def _compute(self, batch: list[Row], gone: Gone, between: Callable[[], None]) -> None:
        # In rounds: rows that have ended stay in the batch until the end of a round, so a round must not go beyond the
        # context length of the longest row.
        left = batch
        while left:
            self._round(left, gone, between)
            left = [row for row in left if row.finish is None]

    def _round(
        self, rows: list[Row], gone: Gone, between: Callable[[], None], is_over: Callable[[], bool] = never_gone
    ) -> None:
        longest = max(len(row.prompt) + len(row.tokens) for row in rows)
        steps = max(row.limit - len(row.tokens) for row in rows)
        if self._prompts.context is not None:
            steps = min(steps, self._prompts.context - longest)
        pad = self._tokenizer.pad_token_id
        device = self._model.device
        so_far = [row.prompt + row.tokens for row in rows]
        tokens = torch.tensor([[pad] * (longest - len(each)) + each for each in so_far], device=device)
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in so_far], device=device)
        self._model.generate(
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=steps,
            logits_processor=LogitsProcessorList([TokenSampler(rows, self._tokenizer, gone)]),
            stopping_criteria=StoppingCriteriaList([FinishedRows(rows, between, is_over)]),
        )


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the end tokens of the model's generation config and of the tokenizer."""
    found = getattr(model.generation_config, "eos_token_id", None)
    listed = found if isinstance(found, list) else [found]
    return frozenset(token for token in [*listed, tokenizer.eos_token_id] if token is not None)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(sign in str(error) for sign in _OUT_OF_MEMORY)


def _is_lost(error: BaseException) -> bool:
    """Return whether the CUDA context is unusable, for example after an assertion in a kernel."""
    return _LOST in str(error) and not _is_out_of_memory(error)


def _collect() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class FairLock:
    """A fair lock, which its holder can offer to waiting threads."""

    def __init__(self) -> None:
        # A ticket lock, because `threading.Lock` is not fair: a thread that gives it up may get it again first.
        self._changed = threading.Condition()
        self._next = 0
        self._served = 0

    def take(self) -> None:
        """Acquire the lock."""
        with self._changed:
            ticket = self._next
            self._next += 1
            while self._served != ticket:
                self._changed.wait()

    def give(self) -> None:
        """Release the lock."""
        with self._changed:
            self._served += 1
            self._changed.notify_all()

    def offer(self) -> bool:
        """Let all waiting threads go first; returns False immediately if there are none."""
        with self._changed:
            if self._next == self._served + 1:
                return False
        self.give()
        self.take()
        return True


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Sort rows by adapter, then by length in descending order, so that batches need little padding."""
    # The longest first: `Budget.next_batch` estimates a batch by its first prompt.
    return sorted(rows, key=lambda row: (row.request.adapter or "", -len(row.prompt), -row.limit))


class Budget:
    """The batch size that fits into memory."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers: int = getattr(config, "num_hidden_layers", 1)
        self._token_bytes = 2 * layers * heads * width * model.dtype.itemsize + config.hidden_size * 8
        self._row_bytes = _WORK_COPIES * 4 * config.vocab_size
        self._device = model.device
        self._most = _MOST_ROWS.get(self._device.type, 32)

    def next_batch(self, waiting: Sequence[Row]) -> int:
        """Return how many of the first rows form the next batch, at least one."""
        longest = len(waiting[0].prompt) + max(row.limit for row in waiting[: self._most])
        each = longest * self._token_bytes + self._row_bytes
        fit = int(self._free_bytes() * _PART_OF_FREE.get(self._device.type, 0.4) // max(each, 1))
        alike = sum(1 for row in waiting if row.request.adapter == waiting[0].request.adapter)
        return max(1, min(fit, self._most, alike))

    def halve(self, rows: int) -> int:
        """Halve the maximum batch size after running out of memory; returns it."""
        self._most = max(1, rows // 2)
        return self._most

    def _free_bytes(self) -> int:
        if self._device.type != "cuda":
            return psutil.virtual_memory().available
        # Memory that torch's allocator has cached counts as used for the driver, but is free for tensors.
        free, _ = torch.cuda.mem_get_info(self._device)
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free + kept)
