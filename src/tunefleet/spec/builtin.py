"""What ships with the package and is named `builtin:NAME`: a wrong name is a fault of the document, not of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator

from tunefleet.spec.base import Text, wrong
from tunefleet.spec.suggestions import nearest

BUILTIN_PREFIX: Final = "builtin:"
"""It is resolved on the worker, and never travels."""
BUILTIN_MODELS: Final = ("builtin:gsm8k-llama-2m",)
BUILTIN_DATASETS: Final = ("builtin:extraction", "builtin:gsm8k", "builtin:gsm8k-preferences")


def _known(what: str, names: tuple[str, ...]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not value.startswith(BUILTIN_PREFIX) or value in names:
            return value
        close = nearest(value, list(names))
        meant = f"did you mean {close}? " if close is not None else ""
        raise wrong(f"names no built-in {what}: {value}", f"{meant}Built in: {', '.join(names)}")

    return check


ABuiltinModel: Final = AfterValidator(_known("model", BUILTIN_MODELS))
ABuiltinDataset: Final = AfterValidator(_known("dataset", BUILTIN_DATASETS))
ModelName = Annotated[Text, ABuiltinModel]
"""A hub id, a local path or `builtin:NAME`."""
