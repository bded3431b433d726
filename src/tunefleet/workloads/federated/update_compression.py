"""Upload formats of adapters: float32, 16 bits, or int8 with error feedback."""

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
from tunefleet.federation.quantize import Feedback, write_int8
from tunefleet.schemas.federated import UpdateTaken, UploadDtype

logger = logging.getLogger("tunefleet.federation")

Residual = Mapping[str, npt.NDArray[np.float32]]
_OWN: Final = "last update: "
_UPDATE: Final = "update"
RESIDUAL: Final = "federated_residual.safetensors"
_STORED: Final[Mapping[UploadDtype, str]] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class Packed:
    """A file ready to be sent."""

    file: Path
    residual: Residual = field(default_factory=dict, repr=False)


class Packer:
    """Writes upload files.

    With int8, the rounding error of a counted update is added to the next one (error feedback), so that nothing is
    lost over several rounds. It belongs to what the server has, so it is kept outside of the checkpoints.
    """

    def __init__(self, dtype: UploadDtype, place: Path, kept: Path) -> None:
        self.dtype = dtype
        self._place = place
        self._kept = kept
        self._feedback = Feedback()
        self._numbers = itertools.count(1)

    def resume(self, others: Path) -> None:
        """Load the rounding error of the last accepted update."""
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
        logger.warning("The rounding error of the last update is lost; the next update does not include it.")

    def forget(self) -> None:
        """Delete the saved rounding error, for a new run."""
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
                f"The tensor {wild} of the adapter has NaN or infinite values, so it is not uploaded.",
                hint="The training run has diverged: lower the learning rate.",
                tensor=wild,
            )
        file = self._place / f"update-{next(self._numbers)}.safetensors"
        if self.dtype == "int8":
            return Packed(file, write_int8(file, arrays, self._feedback.residual))
        write_tensors(file, arrays, dtype=_STORED[self.dtype])
        return Packed(file)

    def keep(self, packed: Packed, reply: UpdateTaken) -> None:
        """Save the rounding error of an update that is or will be counted; otherwise the state stays unchanged."""
        if self.dtype == "int8" and reply.will_count:
            self._feedback = self._feedback.after(packed.residual, reply.id, reply.replaces)
            _write(self._kept, self._feedback)

    def copy_to(self, folder: Path) -> None:
        """Copy the rounding error into a checkpoint."""
        if self._feedback.residual and folder.is_dir():
            _write(folder / RESIDUAL, self._feedback)


def _write(file: Path, feedback: Feedback) -> None:
    own = {_OWN + name: each for name, each in feedback.own.items()}
    with replacing(file) as part:
        save_file({**feedback.residual, **own}, part, {_UPDATE: str(feedback.update)})


def _read(file: Path) -> Feedback:
    with safe_open(file, framework="numpy") as opened:
        found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        stored = (opened.metadata() or {}).get(_UPDATE, "")
    own = {name.removeprefix(_OWN): each for name, each in found.items() if name.startswith(_OWN)}
    residual = {name: each for name, each in found.items() if not name.startswith(_OWN)}
    return Feedback(residual, int(stored) if stored.isdecimal() else None, own)
