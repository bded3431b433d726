"""In-process engine with vLLM, whose batches combine the requests of all clients.

Imported in vLLM's environment only; code that does not need vLLM is in `vllm_options`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tunefleet.errors import MachineError, ModelError
from tunefleet.runtime.gpu.info import read_gpus
from tunefleet.workloads.common.base_model import Source, context_length, embedding_rows, load_tokenizer
from tunefleet.workloads.engine.prompt_encoder import Prompts
from tunefleet.workloads.engine.protocol import (
    Answer,
    Choice,
    EngineAdapter,
    EngineModel,
    Finish,
    Request,
    TokenLogprob,
)
from tunefleet.workloads.engine.vllm_options import Machine, engine_args, sampling_params
from tunefleet.workloads.faults import ClientGoneError, RequestError

logger = logging.getLogger(__name__)

# Interval of checks whether the client is still connected.
_POLL_S = 0.1
_ADAPTER_FILE = "adapter_config.json"


def never_gone() -> bool:
    """Return False: the caller is always connected."""
    return False


class VllmEngine:
    """A model loaded with vLLM. Thread-safe: requests of several threads share its batches."""

    name = "vllm"
    broken: Exception | None = None
    """The error after which the engine cannot answer any more."""

    def __init__(
        self, model: EngineModel, source: Source, say: Callable[[str], None], gpus: Sequence[str] = ()
    ) -> None:
        # A single process without forks, so that killing it frees everything. The user's `env_vars` take precedence.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            from vllm import EngineArgs, LLMEngine
            from vllm.config import StructuredOutputsConfig
        except ImportError as error:
            raise MachineError(f"vLLM cannot be imported: {error}", hint="`tunefleet env check vllm`.") from error
        tokenizer = load_tokenizer(source)
        self._folder = tempfile.TemporaryDirectory(prefix="tunefleet-vllm-")
        self._always, self._adapters = self._split_adapters(model)
        ranks = [_rank_of(Path(each.path)) for each in (*self._adapters.values(), *self._always)]
        fields = {field.name for field in dataclasses.fields(EngineArgs)}
        machine = _machine(gpus)
        arguments, messages = engine_args(model, source.path, machine, known=fields, ranks=ranks)
        for sentence in messages:
            say(sentence)
        try:
            # Without this a model could generate whitespace between JSON tokens endlessly.
            arguments["structured_outputs_config"] = StructuredOutputsConfig(
                backend="xgrammar", disable_any_whitespace=True
            )
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"vLLM cannot load {source.identifier}: {(str(error).splitlines() or [''])[0]}",
                hint="Try the Transformers engine: remove `model.vllm`.",
                detail=str(error),
            ) from error
        context = getattr(self._engine.model_config, "max_model_len", None) or context_length(source)
        vocabulary = embedding_rows(source)
        self._prompts = Prompts(tokenizer, context, list(self._adapters), vocabulary)
        self._numbers = itertools.count()
        self._operations: queue.SimpleQueue[tuple[Callable[[], None], queue.SimpleQueue[Any] | None]] = (
            queue.SimpleQueue()
        )
        self._requests: dict[str, queue.SimpleQueue[Any]] = {}
        # vLLM's CPU kernels apply an adapter to every request in a batch, also to those without one.
        self._one_adapter = machine.gpus == 0 and bool(ranks)
        self._current: Any = None
        self._deferred: dict[str, tuple[Callable[[], None], queue.SimpleQueue[Any] | None]] = {}
        self._closed = False
        threading.Thread(target=self._run, name="vllm", daemon=True).start()

    def render(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Apply the chat template; see `Engine.render`."""
        return self._prompts.render(messages, **kwargs)

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._prompts.has_template

    def generate(self, requests: Sequence[Request], *, gone: Callable[[], bool] = never_gone) -> Iterator[Answer]:
        """Answer requests, each as soon as it is ready; see `Engine.generate`."""
        outputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        prepared = {id(request): self._prepared(request, streamed=False) for request in requests}
        waiting = {self._add(prepared[id(request)], outputs): request for request in requests}
        try:
            while waiting:
                output = _next(outputs, gone)
                request = waiting.pop(output.request_id, None)
                if request is not None:
                    choices = tuple(_choice(each) for each in sorted(output.outputs, key=lambda each: each.index))
                    yield Answer(request.key, choices, len(output.prompt_token_ids))
        finally:
            self._forget(waiting)

    def stream(self, request: Request, *, gone: Callable[[], bool] = never_gone) -> Generator[str, None, Choice]:
        """Stream the answer to one request; returns the full answer."""
        if request.sampling.n != 1:
            raise RequestError("Only a single answer can be streamed.", key=request.key, hint="Remove `n`.")
        outputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        name = self._add(self._prepared(request, streamed=True), outputs)
        text, tokens = "", 0
        try:
            while True:
                output = _next(outputs, gone)
                piece = output.outputs[0]
                text, tokens = text + piece.text, tokens + len(piece.token_ids)
                if piece.text:
                    yield piece.text
                if output.finished:
                    prompt_tokens = len(output.prompt_token_ids)
                    return Choice(text, _finish(piece.finish_reason), tokens, None, prompt_tokens)
        finally:
            self._forget([name])

    def close(self) -> None:
        """Free memory and devices."""
        self._closed = True
        self._operations.put((lambda: None, None))
        self._folder.cleanup()

    def _prepared(self, request: Request, *, streamed: bool) -> tuple[list[int], Any, Any]:
        """Return tokens, sampling parameters and adapter of a request.

        Raises:
            RequestError: If it cannot be answered.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        self._prompts.check(request)
        tokens = self._prompts.tokens(request)
        given = sampling_params(request.sampling)
        given["max_tokens"] = self._prompts.limit(request, tokens)
        given["output_kind"] = RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY
        try:
            if request.sampling.schema is not None:
                schema = json.loads(request.sampling.schema)
                given["structured_outputs"] = StructuredOutputsParams(json=schema)
            params = SamplingParams(**given)
        except ValueError as error:
            raise RequestError(f"Prompt {request.key}: {error}", key=request.key) from error
        return tokens, params, self._lora(request.adapter)

    def _add(self, prepared: tuple[list[int], Any, Any], outputs: queue.SimpleQueue[Any]) -> str:
        tokens, params, lora = prepared
        name = f"r{next(self._numbers)}"

        def add() -> None:
            # Deferred until the running batch has ended: it must not mix adapters.
            if self._one_adapter and self._requests and lora != self._current:
                self._deferred[name] = (add, outputs)
                return
            self._current = lora
            self._requests[name] = outputs
            self._engine.add_request(name, {"prompt_token_ids": tokens}, params, lora_request=lora)

        self._operations.put((add, outputs))
        return name

    def _forget(self, names: Iterable[str]) -> None:
        left = list(names)

        def abort() -> None:
            for name in left:
                self._deferred.pop(name, None)
            known = [name for name in left if self._requests.pop(name, None) is not None]
            if known:
                self._engine.abort_request(known)

        if left:
            self._operations.put((abort, None))

    def _run(self) -> None:
        """Execute queued operations, and run vLLM while there are requests."""
        # The only thread that calls vLLM, whose engine is not thread-safe.
        while True:
            self._run_operations(wait=not self._requests and not self._deferred)
            if self._closed:
                return
            if not self._requests:
                for operation in self._deferred.values():
                    self._operations.put(operation)
                self._deferred.clear()
                continue
            try:
                found = self._engine.step()
            except Exception as error:
                logger.exception("vLLM has failed")
                self._fail_all(error)
                continue
            for output in found:
                known = self._requests.get(output.request_id)
                if known is not None:
                    known.put(output)
                if output.finished:
                    self._requests.pop(output.request_id, None)

    def _fail_all(self, error: Exception) -> None:
        """Fail all current and future requests: vLLM's state after a failed step is undefined."""
        self.broken = error
        for outputs in (*self._requests.values(), *(outputs for _, outputs in self._deferred.values())):
            if outputs is not None:
                outputs.put(error)
        self._requests.clear()
        self._deferred.clear()

    def _run_operations(self, *, wait: bool) -> None:
        while not self._closed:
            try:
                operation, outputs = self._operations.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if self.broken is not None:
                if outputs is not None:
                    outputs.put(self.broken)
                continue
            try:
                operation()
            except Exception as error:  # noqa: BLE001 - raised again by the thread that queued it
                if outputs is not None:
                    outputs.put(error)

    def _lora(self, name: str | None) -> Any:
        from vllm.lora.request import LoRARequest

        wanted = self._always[0] if name is None and self._always else self._adapters.get(name or "")
        if wanted is None:
            return None
        number = 1 + list((*self._always, *self._adapters.values())).index(wanted)
        return LoRARequest(wanted.name, number, wanted.path)

    def _split_adapters(self, model: EngineModel) -> tuple[list[EngineAdapter], dict[str, EngineAdapter]]:
        """Return the adapter applied to every request, and those that requests name, with their scales applied."""
        merged = [each for each in model.adapters if each.merge]
        named = [each for each in model.adapters if not each.merge]
        if len(merged) > 1 or (merged and named):
            raise ModelError(
                "vLLM applies one adapter per request, and the spec merges an adapter in addition to others.",
                hint="Merge them with a `merge` task first, or remove `model.vllm`.",
            )
        return [self._scaled(each) for each in merged], {each.name: self._scaled(each) for each in named}

    def _scaled(self, adapter: EngineAdapter) -> EngineAdapter:
        if adapter.scale == 1:
            return adapter
        # vLLM has no scale for adapters, but scaling `lora_alpha` is equivalent. The original folder stays unchanged.
        before = Path(adapter.path)
        folder = Path(self._folder.name) / hashlib.sha256(adapter.name.encode()).hexdigest()
        folder.mkdir()
        for file in before.iterdir():
            if file.name != _ADAPTER_FILE:
                (folder / file.name).symlink_to(file.resolve())
        config = json.loads((before / _ADAPTER_FILE).read_bytes())
        config["lora_alpha"] = config["lora_alpha"] * adapter.scale
        (folder / _ADAPTER_FILE).write_text(json.dumps(config))
        return dataclasses.replace(adapter, path=str(folder), scale=1.0)


def _next(outputs: queue.SimpleQueue[Any], gone: Callable[[], bool]) -> Any:
    while True:
        try:
            found = outputs.get(timeout=_POLL_S)
        except queue.Empty:
            if gone():
                raise ClientGoneError from None
            continue
        if isinstance(found, Exception):
            raise found
        return found


def _choice(output: Any) -> Choice:
    logprobs = None
    if output.logprobs is not None:
        logprobs = [_likeliest(place) for place in output.logprobs]
    return Choice(output.text, _finish(output.finish_reason), len(output.token_ids), logprobs)


def _likeliest(place: Mapping[int, Any]) -> list[TokenLogprob]:
    operation = sorted(place.items(), key=lambda each: -each[1].logprob)
    return [{"token": each.decoded_token, "id": token, "logprob": each.logprob} for token, each in operation]


def _finish(reason: str | None) -> Finish:
    return "stop" if reason == "stop" else "length" if reason == "length" else "abort"


def _machine(gpus: Sequence[str]) -> Machine:
    if not gpus:
        memory = psutil.virtual_memory()
        return Machine(0, [memory.available / memory.total])
    found = [gpu for gpu in read_gpus() if gpu.uuid in gpus]
    free = [(gpu.memory_free_bytes or 0) / gpu.memory_total_bytes for gpu in found if gpu.memory_total_bytes]
    return Machine(len(gpus), free)


def _rank_of(folder: Path) -> int:
    try:
        return int(json.loads((folder / _ADAPTER_FILE).read_bytes())["r"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The adapter in {folder} has no readable {_ADAPTER_FILE}.", detail=str(error)) from error
