"""Requirements of a node, the number of machines that meet them, and the resulting messages.

Ray names a GPU by its product name, `A100` for `NVIDIA A100-SXM4-80GB` and `GeForce-RTX-4090` for `NVIDIA GeForce RTX
4090`; only the cluster knows which types exist. Source: `ray._private.accelerators.nvidia_gpu` of Ray 2.60; only nodes
with automatically detected GPUs have the resource.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tunefleet.integrations.clusters.base import NodeRequest

_GIGABYTE: Final = 1e9
# Requested amount of the resource: a node has 1 of it, however many GPUs it has.
SHARE: Final = 0.001
PREFIX: Final = "accelerator_type:"
_MAKERS: Final = ("nvidia", "tesla")
_MODEL: Final = re.compile(r"(?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*")


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the Ray cluster."""

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """Whether a cluster can provide the nodes of an order.

    Args:
        autoscaled: Whether an autoscaler can add nodes; None if unknown.
    """

    wanted: int
    each: str
    machines: int
    could: int
    now: int
    autoscaled: bool | None
    need: Mapping[str, float]
    gpus: str = ""

    @property
    def lacking(self) -> bool:
        """Whether the cluster in its current size can never provide the nodes."""
        return self.could < self.wanted

    @property
    def hopeless(self) -> bool:
        """Whether no node fits, and no autoscaler can add one."""
        return self.could == 0 and self.autoscaled is False

    def why(self, patience_s: float) -> str:
        """Return the pending reason."""
        if not self.lacking:
            return (
                f"Needs {_nodes(self.wanted)} with {self.each}; of the Ray cluster's {_nodes(self.machines)}, "
                f"{_count(self.could, 'qualifies', 'qualify')} and {_count(self.now, 'is', 'are')} free"
            )
        hope = "waiting for Ray's autoscaler" if self.autoscaled else "waiting for more nodes"
        return f"{self.short}; {hope}, at most {patience_s:.0f} s"

    @property
    def short(self) -> str:
        """Describe what is missing."""
        return (
            f"Needs {_nodes(self.wanted)} with {self.each}; of the Ray cluster's {_nodes(self.machines)}, "
            f"{_count(self.could, 'qualifies', 'qualify')}{self.gpus}"
        )

    @property
    def never(self) -> str:
        """Describe why the order can never be placed."""
        return f"No node of the Ray cluster has {self.each}{self.gpus}, and there is no autoscaler that could add one."


def bundle(ask: NodeRequest, machines: Sequence[Machine] = ()) -> dict[str, float]:
    """Return the Ray resources of each node; at least one core, since a bundle must not be empty."""
    wanted = {"CPU": float(ask.cpu or 1), "GPU": float(ask.gpu_count), "memory": float(ask.memory_bytes)}
    need = {name: amount for name, amount in wanted.items() if amount}
    # Ray models a GPU type as a resource; a small share of it selects the node.
    if ask.gpu_type is not None and ask.gpu_count:
        need[PREFIX + _type(ask, ask.gpu_type, need, machines)] = SHARE
    return need


def _type(ask: NodeRequest, wanted: str, need: Mapping[str, float], machines: Sequence[Machine]) -> str:
    """Choose a matching GPU type, since a bundle names exactly one: with enough nodes first, then an exact match."""
    suited = [name for name in _types(machines) if _may_be(wanted, name)]
    able = Counter(name for machine in machines if _fits(machine.total, need) for name in _types([machine]))

    def use(name: str) -> tuple[int, bool, int]:
        return min(able[name], ask.nodes), _is_called(wanted, name), able[name]

    return max(suited, key=use, default=_name_of(wanted))


def _types(machines: Sequence[Machine]) -> list[str]:
    """Return the GPU types of some machines."""
    names = {name for machine in machines for name, amount in machine.total.items() if amount}
    return sorted(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))


def capacity_of(ask: NodeRequest, machines: Sequence[Machine], *, autoscaled: bool | None) -> ClusterCapacity:
    """Compare an order with the cluster's machines."""
    need = bundle(ask, machines)
    types = _types(machines)
    strange = any(name.startswith(PREFIX) and name.removeprefix(PREFIX) not in types for name in need)
    return ClusterCapacity(
        wanted=ask.nodes,
        each=_words(need),
        machines=len(machines),
        could=sum(_fits(machine.total, need) for machine in machines),
        now=sum(_fits(machine.free, need) for machine in machines),
        autoscaled=autoscaled,
        need=need,
        gpus=f" (there are GPUs of {', '.join(types) or 'no type known to Ray'})" if strange else "",
    )


def _fits(has: Mapping[str, float], need: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in need.items())


def _words(need: Mapping[str, float]) -> str:
    parts = [f"{need[name]:.0f} {name}{'s' if need[name] > 1 else ''}" for name in ("GPU", "CPU") if name in need]
    if "GPU" in need:
        parts[0] += "".join(f" ({name.removeprefix(PREFIX)})" for name in need if name.startswith(PREFIX))
    if "memory" in need:
        parts.append(f"{need['memory'] / _GIGABYTE:.1f} GB of memory")
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _count(count: int, one: str, several: str) -> str:
    return f"{count or 'none'} {one if count < 2 else several}"


def _is_called(wanted: str, name: str) -> bool:
    """Return whether a name equals `hardware.gpu.type`, ignoring case, hyphens and manufacturer."""
    return _plain(wanted) == _plain(name)


def _may_be(wanted: str, name: str) -> bool:
    """Return whether GPUs with a Ray name may match `hardware.gpu.type`, which may be a part of the product name.

    Ray drops everything after the model: `A100-SXM4-80GB` may be among its `A100`. Only whole words are compared,
    because an `H200` is not an `H20`.
    """
    want, has = _plain(wanted), _plain(name)
    return want in has or f" {has} " in f" {want} "


def _name_of(wanted: str) -> str:
    """Return the name that Ray would give GPUs of which there is no node, by Ray's own rule."""
    text = " ".join(word for word in wanted.split() if word.lower() not in _MAKERS) or wanted
    text = text.upper() if text == text.lower() else text
    model = _MODEL.match(text)
    return "-".join((model.group() if model else text).split())


def _plain(name: str) -> str:
    return " ".join(word for word in name.lower().replace("-", " ").split() if word not in _MAKERS)
