"""The models that a turn may name (base, tuned, adapters), and the engines that serve them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tunefleet.errors import InputError
from tunefleet.runtime.gpu.info import read_gpus
from tunefleet.schemas.chat import BASE, TUNED
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import ChatTaskSpec
from tunefleet.spec.options.checkpoint_storage import LoadedCheckpointSpec
from tunefleet.workloads.engine.client import connect
from tunefleet.workloads.engine.protocol import Engine, EngineModel
from tunefleet.workloads.engine.vllm_options import UTILIZATION, parallel
from tunefleet.workloads.inference import engines
from tunefleet.workloads.inference.engines import engine_model, runtime_adapters

# Memory of an engine relative to the size of its weights; the excess is for the computation.
_BESIDE: Final = 1.2
# Weight files by precedence: a folder may hold both, and an optimizer as well.
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")


class Models:
    """The models of a session. Thread-safe.

    Raises:
        ModelError: If a model or adapter cannot be loaded.
    """

    def __init__(
        self, job: Job, spec: ChatTaskSpec, workspace: Path, say: Callable[[str], None], note: Callable[[str], None]
    ) -> None:
        self._gpus, self._say, self._note, self._lock = job.gpus, say, note, threading.Lock()
        model = engine_model(spec, job.inputs, workspace, engines.choose(spec, job.gpus))
        base_spec = spec.model_copy(update={"checkpoint": LoadedCheckpointSpec()})
        plain = engine_model(base_spec, job.inputs, workspace, engines.choose(spec, job.gpus))
        plain = dataclasses.replace(plain, adapters=())
        named = runtime_adapters(model)
        changed = model.path != plain.path or any(each.merge for each in model.adapters)
        offered = True
        # vLLM reserves its share of GPU memory at the start, so both shares must be known before.
        if changed and job.gpus and model.engine == plain.engine == "vllm":
            model, plain, offered = self._beside(model, plain)
        # Two engines only if the weights differ: an adapter is switched per turn.
        self._plain = plain if changed else model
        self._model = model
        self._adapters = {name: name for name in named}
        tuned = changed or bool(named)
        self._tuned = named[0] if named else None
        self.names = (*((BASE,) if offered else ()), *((TUNED,) if tuned else ()), *named)
        self.default = TUNED if tuned else BASE
        self._open: dict[str, Engine] = {}
        self._loading: dict[str, threading.Lock] = {}
        self.engine(self._model)

    def of(self, name: str | None) -> tuple[Engine, str | None]:
        """Return the engine for a turn, and the name of the adapter in it.

        Raises:
            InputError: If there is no model of that name.
        """
        wanted = name or self.default
        if wanted not in self.names:
            raise InputError(f"The chat has no model {wanted!r}.", hint=f"It has: {', '.join(self.names)}.")
        adapter = None if wanted == BASE else self._tuned if wanted == TUNED else self._adapters[wanted]
        return self.engine(self._behind(wanted)), adapter

    def is_open(self, name: str) -> bool:
        """Return whether the engine of a model is loaded, or there is no such model."""
        return name not in self.names or repr(self._behind(name)) in self._open

    def engine(self, model: EngineModel) -> Engine:
        """Return the engine of a model; it starts on first use, without blocking the other engines."""
        # One lock per model: a start takes minutes, during which other models must stay usable.
        key = repr(model)
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            if key not in self._open:
                apart = BASE if model is self._plain and self._plain is not self._model else ""
                if apart:
                    self._note(f"{model.identifier} (base) is loading next to the tuned model.")
                # Outside of `self._lock`, which would block all turns during the start.
                opened = connect(model, gpus=self._gpus, apart=apart, say=self._say)
                with self._lock:
                    self._open[key] = opened
                if apart:
                    self._note(f"{model.identifier} (base) is loaded.")
            return self._open[key]

    def close(self) -> None:
        """Release the engines; they stay warm for a while."""
        with self._lock:
            for engine in self._open.values():
                engine.close()
            self._open.clear()

    def _behind(self, name: str) -> EngineModel:
        return self._plain if name == BASE else self._model

    def _beside(self, model: EngineModel, plain: EngineModel) -> tuple[EngineModel, EngineModel, bool]:
        """Give each of two engines its share of GPU memory; the last value is False if only the tuned model fits."""
        sizes = [gpu.memory_total_bytes for gpu in read_gpus() if gpu.uuid in self._gpus]
        spread = parallel(model.options.get("tensor_parallel_size"), len(sizes))
        memory = min(size or 0 for size in sizes) * spread if sizes and all(sizes) else None
        asked = model.options.get("gpu_memory_utilization")
        share = share_of_two([weights_size(each.path) for each in (model, plain)], memory, asked)
        if share is None:
            self._say(
                "The base model does not fit on the GPU next to the tuned one: the chat has only the tuned model."
            )
            return model, plain, False
        self._note(f"The tuned model and the base model share the GPU: each gets {share:.0%} of its memory.")
        first, second = (
            dataclasses.replace(each, options={**each.options, "gpu_memory_utilization": share})
            for each in (model, plain)
        )
        return first, second, True


def share_of_two(weights: Sequence[int], memory: int | None, asked: float | None) -> float | None:
    """Return the memory share of each of two engines; None if they do not fit next to each other.

    Args:
        weights: Sizes of the models, in bytes; 0 if unknown.
        memory: Memory of all their GPUs, in bytes; None if the driver does not report it.
    """
    share = min(asked or UTILIZATION, UTILIZATION / 2)
    fits = memory is None or max(weights) * _BESIDE <= share * memory
    return share if fits else None


def weights_size(path: str) -> int:
    """Return the size of a model's weights in bytes; 0 if it is on the Hub, or there are none."""
    folder = Path(path)
    sizes = (sum(each.stat().st_size for each in folder.glob(pattern)) for pattern in _WEIGHTS)
    return next((size for size in sizes if size), 0)
