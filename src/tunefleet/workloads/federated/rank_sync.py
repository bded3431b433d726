"""The ranks of one training, as far as a federation is concerned: rank 0 talks, all copy the same values.

Collectives are on the CPU, in a group of their own, so that none comes between those of the training; every rank calls
each of these at the same step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tunefleet.trainer_control.distributed import world
from tunefleet.trainer_control.distributed.collectives import cpu_group
from tunefleet.workloads.federated.live_adapter import LiveAdapter


class Ranks:
    """This process among those that train together; alone, it does nothing."""

    def __init__(self) -> None:
        group = world.distributed()
        self.size = int(group.get_world_size()) if group is not None else 1
        self.leads = world.rank() == 0
        self.group = cpu_group() if self.size > 1 else None

    def tell(self, said: Any) -> Any:
        """Return on every rank what rank 0 says: anything that can be pickled."""
        if self.group is None:
            return said
        box = [said]
        torch.distributed.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def share(self, live: LiveAdapter, values: Mapping[str, torch.Tensor] | None) -> Mapping[str, torch.Tensor]:
        """Return on every rank the values that rank 0 has.

        Args:
            values: By published name, checked to fit; None on the other ranks.
        """
        if self.group is None:
            assert values is not None, "the only process has them"
            return values
        sizes = [tensor.numel() for tensor in live.tensors.values()]
        if self.leads and values is not None:
            flat = torch.cat([values[name].reshape(-1).float() for name in live.tensors])
        else:
            flat = torch.empty(sum(sizes))
        torch.distributed.broadcast(flat, src=0, group=self.group)
        parts = flat.split(sizes)
        return {name: part.view(tensor.shape) for (name, tensor), part in zip(live.tensors.items(), parts, strict=True)}


class Tally:
    """Adds up rows over all ranks: each step's sum travels while the next step runs."""

    def __init__(self, ranks: Ranks, total: int) -> None:
        self._ranks = ranks
        self._total = total
        self._pending: tuple[Any, torch.Tensor] | None = None

    def add(self, rows: int) -> None:
        """Add this rank's rows of a step; every rank calls it at every step."""
        if self._ranks.group is None:
            self._total += rows
            return
        self._settle()
        facts = torch.tensor([rows], dtype=torch.int64)
        self._pending = (torch.distributed.all_reduce(facts, group=self._ranks.group, async_op=True), facts)

    @property
    def total(self) -> int:
        """Rows of all ranks, up to the last step."""
        self._settle()
        return self._total

    def back_to(self, total: int) -> None:
        """Forget rows: what they have taught is given up."""
        self._settle()
        self._total = total

    def _settle(self) -> None:
        if self._pending is not None:
            work, facts = self._pending
            work.wait()
            self._total += int(facts)
            self._pending = None
