"""Capabilities of simulated workers, sampled from the machines of the plan by its seed."""

from __future__ import annotations

import random

from tunefleet import __version__
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, Gpu, GpuLoad, Load
from tunefleet.simulation.plan import LIGHT, Plan

_GIB = 1 << 30


def worker_id(plan: Plan, number: int) -> str:
    """Return the id of a simulated worker."""
    return f"{plan.run_id}-{number:05}"


def capabilities(plan: Plan, number: int, link: str = "http") -> Capabilities:
    """Return the capabilities of a worker, determined by number and seed."""
    card = random.Random(f"{plan.seed}-{number}").choice(plan.gpus)
    memory_bytes = (32 * _GIB) * max(1, card.gpus) * (2 if card.gib > 40 else 1)
    light = plan.slots if LIGHT in plan.kinds else 0
    return Capabilities.model_validate(
        {
            "version": __version__,
            "hostname": f"simulated-{number:05}",
            "executors": tuple(
                ExecutorOffer(kind=kind, slot_class="light" if kind == LIGHT else "job") for kind in plan.kinds
            ),
            "slots": {"job": plan.slots if set(plan.kinds) - {LIGHT} else 0, "light": light},
            "cpu_count": 8 + 16 * card.gpus,
            "memory_total_bytes": memory_bytes,
            "memory_free_bytes": memory_bytes,
            "disk_free_bytes": 1024 * _GIB,
            "gpus": tuple(
                Gpu(
                    index=index, name=card.name, uuid=f"GPU-{plan.run_id}-{number}-{index}",
                    memory_total_bytes=card.gib * _GIB,
                )
                for index in range(card.gpus)
            ),
            "tags": (plan.tag, "simulated"),
            "platform": "simulated",
            "link": link,
        }
    )  # fmt: skip


def load_of(has: Capabilities, held: int) -> Load:
    """Return the load that a worker reports while it holds some tasks."""
    return Load(
        memory_free_bytes=max(_GIB, has.memory_free_bytes - held * _GIB),
        disk_free_bytes=has.disk_free_bytes,
        load_1m=float(held),
        gpus=tuple(GpuLoad(uuid=gpu.uuid, memory_free_bytes=gpu.memory_total_bytes) for gpu in has.gpus),
    )
