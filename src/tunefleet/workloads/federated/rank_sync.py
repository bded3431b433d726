"""Ranks of a federated run: rank 0 talks to the server, all handle its messages at the same step.

Collectives run on the CPU in a separate process group, so that they do not interleave with those of the trainer. Every
rank must call each of them at the same step.

Messages wait for the end of a step. With several ranks, only rank 0 has them; `trainer_control.distributed` decides
one horizon ahead at which step all ranks handle them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any, Final

import torch

from tunefleet.trainer_control.control.command_queue import Command, CommandQueue
from tunefleet.trainer_control.distributed import world
from tunefleet.trainer_control.distributed.step_agreement import cpu_group
from tunefleet.workloads.federated.live_adapter import LiveAdapter

# A version has been downloaded: `version`.
VERSION: Final = "version"
# The federation uses FedProx: `mu`.
PULL: Final = "pull"
# The server has accepted more rows of this run than its checkpoint knows of: up to row `rows`.
TAKEN: Final = "taken"
# The server refuses this worker: `text`; `over` if the federation has completed.
REFUSED: Final = "refused"


class Ranks:
    """The ranks of the run; with one process all operations are local."""

    def __init__(self) -> None:
        group = world.distributed()
        self.size = int(group.get_world_size()) if group is not None else 1
        self.leads = world.rank() == 0
        self.group = cpu_group() if self.size > 1 else None

    def broadcast(self, value: Any) -> Any:
        """Broadcast a picklable object from rank 0."""
        if self.group is None:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def broadcast_values(
        self, live: LiveAdapter, values: Mapping[str, torch.Tensor] | None
    ) -> Mapping[str, torch.Tensor]:
        """Broadcast the values of rank 0.

        Args:
            values: Checked values by published name; None on the other ranks.
        """
        if self.group is None:
            assert values is not None, "the only rank has the values"
            return values
        # One flat tensor instead of a collective for each of the many small tensors.
        sizes = [tensor.numel() for tensor in live.tensors.values()]
        if self.leads and values is not None:
            flat = torch.cat([values[name].reshape(-1).float() for name in live.tensors])
        else:
            flat = torch.empty(sum(sizes))
        torch.distributed.broadcast(flat, src=0, group=self.group)
        parts = flat.split(sizes)
        return {name: part.view(tensor.shape) for (name, tensor), part in zip(live.tensors.items(), parts, strict=True)}


class RowTotal:
    """Sums rows over all ranks; the reduction of each step overlaps with the next step."""

    def __init__(self, ranks: Ranks, total: int) -> None:
        self._ranks = ranks
        self._total = total
        self._pending: tuple[Any, torch.Tensor] | None = None

    def add(self, rows: int) -> None:
        """Add this rank's rows of a step; every rank must call it at every step."""
        if self._ranks.group is None:
            self._total += rows
            return
        self._settle()
        facts = torch.tensor([rows], dtype=torch.int64)
        self._pending = (torch.distributed.all_reduce(facts, group=self._ranks.group, async_op=True), facts)

    @property
    def total(self) -> int:
        """The rows of all ranks up to the last step."""
        self._settle()
        return self._total

    def reset_to(self, total: int) -> None:
        """Reset the total, after a reload has discarded the training of some rows."""
        self._settle()
        self._total = total

    def _settle(self) -> None:
        if self._pending is not None:
            work, facts = self._pending
            work.wait()
            self._total += int(facts)
            self._pending = None


class Mailbox(CommandQueue):
    """A command queue for messages of a federation, which are not job commands."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = threading.Condition(self._lock)
        self._hurried = False

    def submit(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> Command:
        """Add a message for the end of the current step."""
        item = Command(command_id or uuid.uuid4().hex, command, dict(data or {}))
        with self._lock:
            self._waiting.append(item)
            self.armed = True
            self._arrived.notify_all()
        return item

    def wait(self, timeout_s: float) -> list[Command]:
        """Wait for messages and return them; returns an empty list after the timeout or a call of `hurry`."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._waiting) or self._hurried, timeout_s)
            self._hurried = False
            return self.take()

    def hurry(self) -> None:
        """End the current wait, or the next one if there is none."""
        with self._lock:
            self._hurried = True
            self._arrived.notify_all()

    def adopt(self, item: Command) -> Command:
        """Return a message that was decided on another rank, unchanged."""
        return item
