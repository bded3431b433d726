"""What a node must have for an ask, how many of a cluster's machines have it, and what that means in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tunefleet.clusters.base import Ask
from tunefleet.clusters.ray_gpus import PREFIX, SHARE, type_of

_GIGABYTE: Final = 1e9


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the Ray cluster.

    Args:
        name: How Ray calls it.
        total: What it has.
        free: What of that nobody holds.
    """

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether a cluster can give the nodes of an ask.

    Args:
        wanted: How many at least.
        each: What each must have.
        machines: How many the cluster has.
        could: How many of them have enough.
        now: How many of those have it free.
        autoscaled: Whether an autoscaler brings more; None if that cannot be told.
    """

    wanted: int
    each: str
    machines: int
    could: int
    now: int
    autoscaled: bool | None

    @property
    def lacking(self) -> bool:
        """Whether the cluster, as it is, cannot give them, whatever ends."""
        return self.could < self.wanted

    @property
    def hopeless(self) -> bool:
        """Whether there is none, and nothing that could bring one."""
        return self.could == 0 and self.autoscaled is False

    def why(self, patience_s: float) -> str:
        """Say why nodes are waited for."""
        if not self.lacking:
            return (
                f"{_nodes(self.wanted)} with {self.each} wanted: of the Ray cluster's {_nodes(self.machines)} "
                f"{_have(self.could)} that, {_have(self.now)} it free now"
            )
        hope = "Ray's autoscaler is asked for more" if self.autoscaled else "more may join"
        return f"{self.short}; {hope}, for at most {patience_s:.0f} s"

    @property
    def short(self) -> str:
        """Say how far it is from enough."""
        return (
            f"{_nodes(self.wanted)} with {self.each} wanted: of the Ray cluster's {_nodes(self.machines)} "
            f"{_have(self.could)} that"
        )

    @property
    def never(self) -> str:
        """Say that it is hopeless."""
        return f"No node of the Ray cluster has {self.each}, and no autoscaler runs there that could bring one."


def bundle(ask: Ask) -> dict[str, float]:
    """Return what each node must have, in Ray's words; a core at least, for a bundle of nothing is none."""
    wanted = {"CPU": float(ask.cpu or 1), "GPU": float(ask.gpu_count), "memory": float(ask.memory_bytes)}
    named = None if ask.gpu_type is None else type_of(ask.gpu_type)
    if named is not None and ask.gpu_count:
        wanted[PREFIX + named] = SHARE
    return {name: amount for name, amount in wanted.items() if amount}


def outlook(ask: Ask, machines: Sequence[Machine], *, autoscaled: bool | None) -> Outlook:
    """Compare what is asked with what there is."""
    need = bundle(ask)
    return Outlook(
        wanted=ask.nodes,
        each=_words(need),
        machines=len(machines),
        could=sum(_fits(machine.total, need) for machine in machines),
        now=sum(_fits(machine.free, need) for machine in machines),
        autoscaled=autoscaled,
    )


def _fits(has: Mapping[str, float], need: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in need.items())


def _words(need: Mapping[str, float]) -> str:
    said = [f"{need[name]:.0f} {name}{'s' if need[name] > 1 else ''}" for name in ("GPU", "CPU") if name in need]
    if "GPU" in need:
        said[0] += "".join(f" ({name.removeprefix(PREFIX)})" for name in need if name.startswith(PREFIX))
    if "memory" in need:
        said.append(f"{need['memory'] / _GIGABYTE:.1f} GB of memory")
    return " and ".join((", ".join(said[:-1]), said[-1])) if len(said) > 1 else said[0]


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _have(count: int) -> str:
    return "none has" if count == 0 else f"{count} {'has' if count == 1 else 'have'}"
