"""Opens an engine in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tunefleet.workloads.common.base_model import locate
from tunefleet.workloads.engine.protocol import Engine, EngineModel

logger = logging.getLogger(__name__)


def open_engine(model: EngineModel, *, gpus: Sequence[str] = (), say: Callable[[str], None] | None = None) -> Engine:
    """Load a model here, with what `EngineModel.engine` names.

    Args:
        model: What to load; a hub id is looked up first.
        gpus: UUIDs of the GPUs that this process sees, where vLLM is to share them.
        say: Told, in a sentence, what the user should know, such as that fewer answers are made at once; the log by
            default.

    Raises:
        ModelError: If the model or an adapter cannot be loaded.
        MachineError: If an option needs what this machine does not have.
    """
    source = locate(model.path, None, revision=model.revision, trust_remote_code=model.trust_remote_code)
    tell = say or logger.warning
    if model.engine == "vllm":
        from tunefleet.workloads.engine.vllm_backend import VllmEngine

        return VllmEngine(model, source, tell, gpus)
    from tunefleet.workloads.engine.transformers_backend import TransformersEngine

    return TransformersEngine(model, source, tell)
