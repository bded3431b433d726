"""Adapters on their way up: as float32, in half of that, or in 8 bits whose rounding is made up for the next time."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tunefleet.artifacts import replacing
from tunefleet.errors import AdapterRefused
from tunefleet.federation import write_tensors
from tunefleet.federation.feedback import Feedback
from tunefleet.federation.quantize import write_int8
from tunefleet.schemas.federated import UpdateTaken, UploadDtype

logger = logging.getLogger("tunefleet.federation")

Residual = Mapping[str, npt.NDArray[np.float32]]
_OWN: Final = "last update: "
_UPDATE: Final = "update"
RESIDUAL: Final = "federated_residual.safetensors"
_STORED: Final[Mapping[UploadDtype, str]] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class Packed:
    """A file that can be sent."""

    file: Path
    residual: Residual = field(default_factory=dict, repr=False)


class Packer:
    """Writes the files that are sent.

    In 8 bits the rounding of an update that counts is added to the next one, so that over several rounds nothing is
    lost. It belongs to what the server has, and is kept beside the checkpoints.
    """

    def __init__(self, dtype: UploadDtype, place: Path, kept: Path) -> None:
        self.dtype = dtype
        self._place = place
        self._kept = kept
        self._feedback = Feedback()
        self._numbers = itertools.count(1)

    def resume(self, others: Path) -> None:
        """Take up the rounding of the last update that was taken."""
        if self.dtype != "int8":
            return
        for file in (self._kept, others):
            try:
                self._feedback = _read(file)
            except FileNotFoundError:
                continue
            except SafetensorError as error:
                logger.warning("%s cannot be read (%s).", file, error)
                continue
            return
        logger.warning("The rounding of the last update is not here any more; the next one does without it.")

    def forget(self) -> None:
        """Begin anew: another training."""
        self._kept.unlink(missing_ok=True)

    def pack(self, values: Mapping[str, torch.Tensor]) -> Packed:
        """Write a file.

        Raises:
            AdapterRefused: If a value is not finite.
        """
        arrays = {name: tensor.detach().cpu().float().numpy() for name, tensor in values.items()}
        wild = next((name for name, array in arrays.items() if not np.isfinite(array).all()), None)
        if wild is not None:
            raise AdapterRefused(
                f"The tensor {wild} that trains is not finite, so it is not uploaded.",
                hint="The training has diverged: lower the learning rate.",
                tensor=wild,
            )
        file = self._place / f"update-{next(self._numbers)}.safetensors"
        if self.dtype == "int8":
            return Packed(file, write_int8(file, arrays, self._feedback.residual))
        write_tensors(file, arrays, dtype=_STORED[self.dtype])
        return Packed(file)

    def keep(self, packed: Packed, reply: UpdateTaken) -> None:
        """Remember the rounding of an update, if that counts or waits to; else all is as if it had not been packed."""
        if self.dtype == "int8" and reply.will_count:
            self._feedback = self._feedback.after(packed.residual, reply.id, reply.replaces)
            _write(self._kept, self._feedback)

    def copy_to(self, folder: Path) -> None:
        """Leave a copy of the rounding in a checkpoint."""
        if self._feedback.residual and folder.is_dir():
            _write(folder / RESIDUAL, self._feedback)


def _write(file: Path, feedback: Feedback) -> None:
    own = {_OWN + name: each for name, each in feedback.own.items()}
    with replacing(file) as part:
        save_file({**feedback.residual, **own}, part, {_UPDATE: str(feedback.update)})


def _read(file: Path) -> Feedback:
    with safe_open(file, framework="numpy") as opened:
        found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        said = (opened.metadata() or {}).get(_UPDATE, "")
    own = {name.removeprefix(_OWN): each for name, each in found.items() if name.startswith(_OWN)}
    residual = {name: each for name, each in found.items() if not name.startswith(_OWN)}
    return Feedback(residual, int(said) if said.isdecimal() else None, own)
