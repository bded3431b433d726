"""Environment variables and secrets in a spec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from tunefleet.spec.base import Text, wrong

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"\$\{secret:[^{}]+\}")
_MAX_VARIABLES: Final = 100
_TUNES: Final = re.compile(
    r"(?!.*(?:PLUGIN|PATH|FILE|DIR|ROOT|URL|HOST|KEY|SCOPE|CONFIG|INSECURE|SERIALIZ|DEV_MODE|RUNTIME))"
    r"(?:(?:VLLM|NCCL)_[A-Z0-9_]+|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_MAX_CONNECTIONS|PYTORCH_(?:CUDA_)?ALLOC_CONF"
    r"|(?:OMP|MKL)_NUM_THREADS|TOKENIZERS_PARALLELISM)"
)
_OURS: Final = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD"})


def _variables(value: dict[str, str]) -> dict[str, str]:
    if len(value) > _MAX_VARIABLES:
        raise wrong(f"has {len(value)} variables; at most {_MAX_VARIABLES} are allowed")
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name) or "\0" in text:
            raise wrong("is not a variable", "letters, digits and _, such as MY_OPTION", at=name)
        if name in _OURS:
            raise wrong("is set by the worker", "say what the task needs in resources.hardware.gpu", at=name)
    return value


def runs_code(variables: Mapping[str, str]) -> bool:
    """Whether variables may do more to a process than tune it: name files, plug-ins, other hosts or modules.

    Args:
        variables: Name → value, of a process that otherwise runs no code of a task.
    """
    return any(not _TUNES.fullmatch(name) or "/" in text or "\\" in text for name, text in variables.items())


def _as_texts(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _as_text(text) for name, text in value.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _only_a_secret(value: str) -> str:
    if not _SECRET.fullmatch(value):
        raise wrong("would be readable for everybody who may see the task", "write ${secret:NAME}")
    return value


Variables = Annotated[dict[str, str], BeforeValidator(_as_texts), AfterValidator(_variables)]
"""Environment variables."""
Secret = Annotated[Text, AfterValidator(_only_a_secret)]
"""`${secret:NAME}`: the worker knows the value."""
