"""Which values of a spec may be files on the machine that submits. Looks at no disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tunefleet.spec.tasks import BaseTaskSpec, TrainingTaskSpec

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


def local_paths(spec: BaseTaskSpec) -> list[LocalPath]:
    """Return the values that may be local paths, in the order of the document's blocks.

    Args:
        spec: A task. `builtin:` names and paths on the worker are left out.
    """
    if not isinstance(spec, TrainingTaskSpec):
        return []
    found = [LocalPath("model.source.identifier", spec.model.source.identifier, "model", required=False)]
    source = spec.data.source
    if source.kind in {"hub", "file"}:
        found.append(LocalPath(source.pointer, source.value, "dataset", required=source.kind == "file"))
    if spec.data.eval is not None and spec.data.eval.path is not None:
        found.append(LocalPath("data.eval.path", spec.data.eval.path, "dataset", required=True))
    if spec.checkpoint.load is not None:
        found.append(LocalPath("checkpoint.load.path", spec.checkpoint.load.path, "model", required=True))
    return [path for path in found if not path.value.startswith(BUILTIN_PREFIX)]
