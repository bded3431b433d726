"""A training run's participation in a federation: what every rank does at the end of a step.

Threads of rank 0 talk to the server; their messages wait in a mailbox, from which all ranks take them at the same step.
"""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerState, TrainingArguments

from tunefleet.errors import ConflictError
from tunefleet.schemas.federated import Losses
from tunefleet.trainer_control.control.command_queue import Command
from tunefleet.trainer_control.distributed.step_agreement import StepCoordinator, coordinator_for
from tunefleet.workloads.federated.live_adapter import LiveAdapter
from tunefleet.workloads.federated.options import Options, check_arguments
from tunefleet.workloads.federated.rank_sync import PULL, REFUSED, TAKEN, VERSION, Mailbox, Ranks, RowTotal
from tunefleet.workloads.federated.row_counter import RowCounter, sequences_per_row
from tunefleet.workloads.federated.session import FederationSession
from tunefleet.workloads.federated.state import Progress
from tunefleet.workloads.federated.uploader import Capture, Sent
from tunefleet.workloads.federated.weight_reload import blend, check_held, keep_frozen_copy

logger = logging.getLogger("tunefleet.federation")
_SLOPE = math.sqrt(5)


class FederationWarning(UserWarning):
    """A federation refuses a worker or has ended; training continues without it."""


class Participation:
    """Participates in a federation; created on every rank when training starts.

    Args:
        state: State of the trainer; beyond step 0 the run is resumed.
    """

    def __init__(
        self, options: Options, model: Any, optimizer: Any, args: TrainingArguments, state: TrainerState, saved: object
    ) -> None:
        check_arguments(args, options.mu)
        self._options = options
        self._optimizer = optimizer
        self.over = False
        self._resumed = state.global_step > 0
        self.progress = Progress.of(saved) if self._resumed else Progress()
        self.live = LiveAdapter(model, options.adapter)
        self.live.config_for(options.base_model)  # fails for adapters that no federation accepts
        check_held(optimizer, self.live.trained, self.live.name)
        self._ranks = Ranks()
        self._mailbox = Mailbox()
        self._decider: StepCoordinator = coordinator_for(self._mailbox)
        self._session: FederationSession | None = None
        if self._ranks.leads:
            place = options.place(str(args.output_dir))
            checkpoint = Path(str(args.output_dir), f"checkpoint-{state.global_step}") if self._resumed else None
            self._session = FederationSession(options, self.live, self.progress, self._mailbox, place, checkpoint)
        self._row_total = RowTotal(self._ranks, self.progress.rows)
        self._captured = 0
        self._proximal_term: ProximalTerm | None = None
        self._args = args
        self._losses: tuple[float | None, float | None] = (None, None)
        self._step = self._adopted_at = int(state.global_step)
        per_row = options.sequences_per_row or sequences_per_row(args)
        self._counter = RowCounter(model, sequences_per_row=per_row)
        try:
            self._begin()
        except BaseException:
            self.abandon()
            raise

    @property
    def sent(self) -> list[Sent]:
        """The updates that the server accepted in this launch; on rank 0."""
        return self._session.sent if self._session is not None else []

    def checkpoint_state(self) -> dict[str, int]:
        """Return the state for a checkpoint."""
        self.progress.rows = self._row_total.total
        return self.progress.plain()

    def _begin(self) -> None:
        """Start from the newest version; if the server does not respond, the version is adopted later."""
        joined = self._ranks.broadcast(self._session.connect() if self._session is not None else None)
        self.progress.taken = joined["taken"]
        self._captured = max(self.progress.taken, self.progress.given_up)
        if joined["refused"] is not None:
            self._refused(joined["refused"])
        if joined["version"] is None and joined["id"] is not None and self._options.same_start and not self._resumed:
            self._share_initialization(joined["id"])
        mu = self._options.mu if self._options.mu is not None else joined["pull"]
        if mu:
            self._set_proximal_term(mu)
        if joined["version"] is not None:
            self._adopt(joined["version"])
        if self._session is not None:
            self._session.start()

    def _share_initialization(self, federation: str) -> None:
        if share_initialization(self.live, federation):
            logger.info("The adapter is initialized as on the other workers of %s.", federation)

    def step_ended(self, step: int) -> None:
        """Count rows, upload if due, and handle messages; every rank calls it at the end of every step."""
        self._step = step
        rows = self._counter.take()
        # A step whose gradients overflowed was skipped, so its rows were not trained.
        self._row_total.add(0 if getattr(self._optimizer, "step_was_skipped", False) else rows)
        due = self._decider.due(step)
        sent = step % self._options.sync_every_steps == 0 and self.capture(step)
        for item in due:
            self._act(item.command, item.data)
        # A step that an earlier launch has uploaded leads to no new version, so there is nothing to wait for.
        if sent and self._options.wait_s > 0:
            self._wait()

    def before_optimizer(self) -> None:
        """Add the FedProx term to the gradients, if the federation uses it."""
        if self._proximal_term is not None:
            self._proximal_term.apply()

    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        """Record the first loss since the last version, and the newest one."""
        loss = logs.get("loss")
        # The loss logged at the step of a reload was computed with the values before it.
        if isinstance(loss, int | float) and math.isfinite(loss) and step != self._adopted_at:
            before, _ = self._losses
            self._losses = (float(loss) if before is None else before, float(loss))

    def capture(self, step: int) -> bool:
        """Pass a copy of the adapter to the upload thread, if rows were trained since the last one."""
        rows = self._row_total.total
        if rows <= self._captured:
            return False
        self._captured = self.progress.rows = rows
        if self._session is not None:
            before, after = self._losses
            losses = Losses(before=before, after=after)
            self._session.send(
                Capture(step, rows, self.progress.version, self.live.copied(), losses, self.progress.given_up)
            )
        return True

    def saved(self, checkpoint: Path) -> None:
        """Add the error feedback of int8 uploads to a checkpoint."""
        if self._session is not None:
            self._session.packer.copy_to(checkpoint)

    def finish(self, step: int) -> None:
        """Send the last update, wait for it up to `final_wait_s`, and release all resources."""
        self.capture(step)
        self._counter.close()
        if self._session is not None:
            self._session.finish(self._options.final_wait_s)
            # Refusals are handled here because no further step follows.
            refusals = [item for item in self._mailbox.take() if item.command == REFUSED]
            for item in refusals:
                self._refused(item.data)

    def abandon(self) -> None:
        """Release all resources immediately and end all requests."""
        self._counter.close()
        if self._session is not None:
            self._session.close()
            self._session.join()

    def hurry(self) -> None:
        """End a wait for a version, so that a pending command can be handled."""
        self._mailbox.hurry()

    def _wait(self) -> None:
        """Wait for the next version before the next step."""
        # Every rank is at this step, so no common step has to be agreed on.
        waiting: list[Command] = []
        if self._session is not None and not self._session.arrived and not self._session.stopped:
            logger.info("Waiting up to %.0f s for the next version of the federation.", self._options.wait_s)
            waiting = self._mailbox.wait(self._options.wait_s)
        for command, data in self._ranks.broadcast([(item.command, item.data) for item in waiting]):
            self._act(command, data)

    def _act(self, command: str, data: Mapping[str, Any]) -> None:
        if command == VERSION:
            self._adopt(int(data["version"]))
        elif command == PULL:
            self._set_proximal_term(float(data["mu"]))
        elif command == TAKEN:
            self.progress.raise_taken(int(data["rows"]))
            self._captured = max(self._captured, int(data["rows"]))
        elif command == REFUSED:
            self._refused(data)

    def _adopt(self, version: int) -> None:
        """Copy a version into the adapter being trained."""
        mine = self._session.arrived.pop(version).values if self._session is not None else None
        values = self._ranks.broadcast_values(self.live, mine)
        # Before any training there are no local changes to mix with.
        share = self._options.share if self._row_total.total else 1.0
        blend(self.live, values, share)
        if share == 1.0:
            # Replacing discards the training since the last capture, so its rows are not counted. Rows before it are in
            # earlier captures; if one of these is superseded, its rows are lost, which `given_up` records.
            self._row_total.reset_to(min(self._captured, self._row_total.total))
            self.progress.given_up = self._captured
        self._options.moments.apply(self._optimizer, self.live.trained)
        if self._options.keep_as is not None:
            keep_frozen_copy(self.live, values, self._options.keep_as)
        if self._proximal_term is not None:
            self._proximal_term.move_anchor(values)
        self.progress.version, self._adopted_at = version, self._step
        self._losses = (None, None)
        logger.info("Version %d of the global adapter is loaded.", version)

    def _set_proximal_term(self, mu: float) -> None:
        check_arguments(self._args, mu)
        if self._proximal_term is None:
            self._proximal_term = ProximalTerm(self.live, mu)

    def _refused(self, data: Mapping[str, Any]) -> None:
        """Raise or warn about a refusal, according to `on_refused`."""
        error = self._session.fault(data["text"]) if self._session is not None else None
        self.over = self.over or bool(data["over"])
        if self._options.on_refused == "raise" and not data["over"]:
            self.abandon()
            raise error if error is not None else ConflictError(data["text"])
        if self._ranks.leads:
            warnings.warn(data["text"], FederationWarning, stacklevel=2)


class ProximalTerm:
    """Adds mu · (w − w_global) to the gradients, the gradient of the proximal term mu/2 · ‖w − w_global‖².

    Source: Li et al., Federated Optimization in Heterogeneous Networks, https://arxiv.org/abs/1812.06127.
    """

    def __init__(self, live: LiveAdapter, mu: float) -> None:
        self._live = live
        self._mu = mu
        self._anchor = {name: parameter.detach().clone() for name, parameter in live.trained.items()}

    def move_anchor(self, values: Mapping[str, torch.Tensor]) -> None:
        """Use another version as the anchor from now on."""
        for name, anchor in self._anchor.items():
            anchor.copy_(values[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Change the gradients; called after accumulation and clipping, before the optimizer step."""
        for name, parameter in self._live.trained.items():
            if parameter.grad is not None:
                parameter.grad.add_(parameter - self._anchor[name], alpha=self._mu)


@torch.no_grad()
def share_initialization(live: LiveAdapter, federation: str) -> bool:
    """Initialize an untrained adapter with a seed shared by all workers of a federation.

    The product of its factors stays zero, so the model is unchanged.
    """
    way = getattr(live.config, "init_lora_weights", True)
    pairs = [(name, name.replace("lora_A.", "lora_B.")) for name in live.tensors if "lora_A." in name]
    alike = way is True or way == "gaussian"
    if not pairs or not alike or any(torch.any(live.tensors[b] != 0) for _, b in pairs if b in live.tensors):
        return False
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(federation.encode()).digest()[:7]))
    for name, _ in pairs:
        # On the CPU, because GPU generators produce other numbers.
        sampled = torch.empty(live.tensors[name].shape)
        if way is True:
            nn.init.kaiming_uniform_(sampled, a=_SLOPE, generator=generator)
        else:
            nn.init.normal_(sampled, std=1 / sampled.shape[0], generator=generator)
        live.tensors[name].copy_(sampled)
    return True
