"""What a turn may name: the model as it was, the tuned one, and adapters; and the engines that have them."""

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
from tunefleet.spec.options.checkpoint import LoadedCheckpointSpec
from tunefleet.workloads.engine.client import connect
from tunefleet.workloads.engine.protocol import Engine, EngineModel
from tunefleet.workloads.engine.vllm_options import UTILIZATION, parallel
from tunefleet.workloads.inference import engines
from tunefleet.workloads.inference.weights import engine_model, runtime_adapters


class Models:
    """The models of a session. Safe to use from several threads.

    Raises:
        ModelError: If a model or adapter cannot be loaded.
    """

    def __init__(
        self, job: Job, spec: ChatTaskSpec, workspace: Path, say: Callable[[str], None], note: Callable[[str], None]
    ) -> None:
        self._gpus, self._say, self._note, self._lock = job.gpus, say, note, threading.Lock()
        model = engine_model(spec, job.inputs, workspace, engines.choose(spec, job.gpus))
        bare = spec.model_copy(update={"checkpoint": LoadedCheckpointSpec()})
        plain = engine_model(bare, job.inputs, workspace, engines.choose(spec, job.gpus))
        plain = dataclasses.replace(plain, adapters=())
        named = runtime_adapters(model)
        changed = model.path != plain.path or any(each.merge for each in model.adapters)
        offered = True
        if changed and job.gpus and model.engine == plain.engine == "vllm":
            model, plain, offered = self._beside(model, plain)
        # Two engines only where the weights differ: an adapter is put on and off with each turn.
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
        """Return the engine that a turn is put to, and the adapter that it names there.

        Raises:
            InputError: If there is no model of that name.
        """
        wanted = name or self.default
        if wanted not in self.names:
            raise InputError(f"The chat has no model {wanted!r}.", hint=f"It has: {', '.join(self.names)}.")
        adapter = None if wanted == BASE else self._tuned if wanted == TUNED else self._adapters[wanted]
        return self.engine(self._behind(wanted)), adapter

    def is_open(self, name: str) -> bool:
        """Whether the engine of a model is loaded, or there is none of that name."""
        return name not in self.names or repr(self._behind(name)) in self._open

    def engine(self, model: EngineModel) -> Engine:
        """Return the engine that has a model loaded; it is started the first time, and holds up no other."""
        key = repr(model)
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            if key not in self._open:
                apart = BASE if model is self._plain and self._plain is not self._model else ""
                if apart:
                    self._note(f"{model.identifier} as it was is loaded beside the tuned one.")
                opened = connect(model, gpus=self._gpus, apart=apart, say=self._say)
                with self._lock:
                    self._open[key] = opened
                if apart:
                    self._note(f"{model.identifier} as it was is loaded.")
            return self._open[key]

    def close(self) -> None:
        """Let go of the engines; they stay warm for a while."""
        with self._lock:
            for engine in self._open.values():
                engine.close()
            self._open.clear()

    def _behind(self, name: str) -> EngineModel:
        return self._plain if name == BASE else self._model

    def _beside(self, model: EngineModel, plain: EngineModel) -> tuple[EngineModel, EngineModel, bool]:
        """Give each of two engines its share of the GPUs' memory; the last one is false if only the first has room."""
        sizes = [gpu.memory_total_bytes for gpu in read_gpus() if gpu.uuid in self._gpus]
        spread = parallel(model.options.get("tensor_parallel_size"), len(sizes))
        memory = min(size or 0 for size in sizes) * spread if sizes and all(sizes) else None
        asked = model.options.get("gpu_memory_utilization")
        share = share_of_two([weights_size(each.path) for each in (model, plain)], memory, asked)
        if share is None:
            self._say(
                "The GPU has no room for the tuned model and the one as it was: the chat has the tuned one alone."
            )
            return model, plain, False
        self._note(f"The tuned model and the one as it was share the GPU: each gets {share:.0%} of its memory.")
        first, second = (
            dataclasses.replace(each, options={**each.options, "gpu_memory_utilization": share})
            for each in (model, plain)
        )
        return first, second, True


# Memory that an engine needs, by the size of its weights: the rest is for what it computes.
_BESIDE: Final = 1.2
# Files of weights, the ones that are loaded first: a folder may have both, and an optimizer beside them.
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")


def share_of_two(weights: Sequence[int], memory: int | None, asked: float | None) -> float | None:
    """Return which share of the memory each of two engines gets; None if they do not fit beside each other.

    Args:
        weights: Sizes of the models, in bytes; 0 if one is not known.
        memory: Of all their GPUs, in bytes; None if the driver does not say.
    """
    share = min(asked or UTILIZATION, UTILIZATION / 2)
    fits = memory is None or max(weights) * _BESIDE <= share * memory
    return share if fits else None


def weights_size(path: str) -> int:
    """Return the size of a model's weights in bytes; 0 if it is on a hub, or there are none."""
    folder = Path(path)
    sizes = (sum(each.stat().st_size for each in folder.glob(pattern)) for pattern in _WEIGHTS)
    return next((size for size in sizes if size), 0)
