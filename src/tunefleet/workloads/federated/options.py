"""Validated arguments of a `FederatedCallback`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from transformers import TrainingArguments

from tunefleet.errors import InputError
from tunefleet.schemas.federated import UploadDtype
from tunefleet.workloads.federated.weight_reload import MomentPolicy, parse_share

OnRefused = Literal["raise", "warn"]


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a `FederatedCallback`; see there.

    Raises:
        InputError: If an argument is invalid.
    """

    url: str = field(repr=False)
    job_id: str
    worker_id: str
    token: str | None = field(repr=False)
    sync_every_steps: int
    upload_dtype: UploadDtype
    reload: str
    optimizer_state: str
    keep_as: str | None
    adapter: str | None
    base_model: str | None
    mu: float | None
    same_start: bool
    sequences_per_row: int | None
    on_refused: OnRefused
    wait_s: float
    final_wait_s: float
    max_bytes_per_s: float | None
    folder: str | None
    attempt: int | None = None

    def __post_init__(self) -> None:
        parse_share(self.reload)
        MomentPolicy.parse(self.optimizer_state)
        _among("upload_dtype", self.upload_dtype, get_args(UploadDtype))
        _among("on_refused", self.on_refused, get_args(OnRefused))
        if isinstance(self.sync_every_steps, bool) or self.sync_every_steps < 1:
            raise InputError(f"sync_every_steps is {self.sync_every_steps}.", hint="Use a whole number of at least 1.")
        if self.attempt is not None and (isinstance(self.attempt, bool) or self.attempt < 1):
            raise InputError(f"attempt is {self.attempt}.", hint="Count attempts from 1, or remove it.")
        if self.mu is not None and self.mu < 0:
            raise InputError(
                f"mu is {self.mu}.", hint="Use a number of at least 0; None uses the federation's setting."
            )

    @property
    def share(self) -> float:
        """The weight of a new version in the mix."""
        return parse_share(self.reload)

    @property
    def moments(self) -> MomentPolicy:
        """The policy for the optimizer state."""
        return MomentPolicy.parse(self.optimizer_state)

    def place(self, output_dir: str) -> Path:
        """Return the folder for files in transit and for the state that must survive a crash."""
        return Path(self.folder).expanduser() if self.folder else Path(output_dir, "federated")


def check_arguments(args: TrainingArguments, mu: float | None) -> None:
    """Refuse training arguments with which copying into parameters would not work."""
    strategies: dict[str, Any] = {"fsdp": args.fsdp, "deepspeed": args.deepspeed}
    used = next((name for name, value in strategies.items() if value), None)
    if used is not None:
        raise InputError(
            f"The run uses {used}, where no process holds the full adapter with its optimizer state.",
            hint="Adapters are small: use plain data parallelism (torchrun), or one process.",
        )
    parallel = getattr(args, "parallelism_config", None)
    shared = [name for name in ("tp_size", "cp_size", "sp_size") if (getattr(parallel, name, 1) or 1) > 1]
    if shared:
        raise InputError(
            f"The run splits rows or weights across ranks ({shared[0]}), so its rows cannot be counted.",
            hint="Use plain data parallelism.",
        )
    if mu and args.fp16 and not args.max_grad_norm:
        raise InputError(
            "With fp16 and max_grad_norm=0, gradients are still loss-scaled when FedProx changes them.",
            hint="Train in bf16, or set max_grad_norm.",
        )


def _among(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} is {value!r}.", hint=f"Write {', '.join(known[:-1])} or {known[-1]}.")
