"""Which values of a spec may be files on the machine that submits. Looks at no disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tunefleet.spec.tasks import BaseTaskSpec

BUILTIN_PREFIX: Final = "builtin:"
"""What ships with the package is named `builtin:NAME`, resolved on the worker, and never travels."""

PathRole = Literal["dataset", "model"]


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A value that may be, or must be, a local path.

    Args:
        pointer: Dotted path below `spec`, such as `data.path`; the key of `SubmitRequest.inputs`.
        value: As written.
        role: What it is used as.
        required: Whether it can only be a local path; otherwise it may also be a hub id, and is a local path if it
            looks like one or exists beside the document.
    """

    pointer: str
    value: str
    role: PathRole
    required: bool

    @property
    def looks_local(self) -> bool:
        """Whether it is written as a path: it starts with `./`, `../`, `/` or `~`."""
        return self.value in {".", ".."} or self.value.startswith(("./", "../", "/", "~"))


_PLACES: Final[tuple[tuple[str, PathRole, bool], ...]] = (
    ("model.source.identifier", "model", False),
    ("data.dataset_name", "dataset", False),
    ("data.path", "dataset", True),
    ("data.jsonl_path", "dataset", True),
    ("data.jsonl.path", "dataset", True),
    ("data.eval.path", "dataset", True),
    ("checkpoint.load.path", "model", True),
)
"""Pointer, role, whether it can only be a local path."""


def local_paths(spec: BaseTaskSpec | Mapping[str, Any]) -> list[LocalPath]:
    """Return the values that may be local paths, in the order of the document's blocks.

    Args:
        spec: A task, or the mapping below its `spec`, which may have references (`TaskNode.raw`). Left out are
            references, `builtin:` names, addresses and paths on the worker.
    """
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(spec, BaseTaskSpec) else spec
    found = []
    for pointer, role, required in _PLACES:
        value = _at(data, pointer)
        if isinstance(value, str) and not _travels_not(value):
            found.append(LocalPath(pointer, value, role, required))
    return found


def _at(data: Any, pointer: str) -> Any:
    for key in pointer.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _travels_not(value: str) -> bool:
    return value.startswith(BUILTIN_PREFIX) or "${" in value or "://" in value
