"""A memory that holds two rows at once: from its third step on, a pass of a Trainer with more of them does not fit.

Put the folder of this file into `PYTHONPATH`: each Python process then changes `transformers.trainer` as it is loaded.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

_MODULE = "transformers.trainer"
_ROWS, _STEPS = 2, 2


class _Finder:
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _shrink(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _shrink(module: ModuleType) -> None:
    usual = module.Trainer.training_step

    def step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if self.state.global_step >= _STEPS and inputs["input_ids"].shape[0] > _ROWS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return usual(self, model, inputs, *args, **kwargs)

    module.Trainer.training_step = step


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
