"""Parameters of a load, validated before anything starts."""

from __future__ import annotations

import random
import re
import secrets
from typing import Final, Literal, NamedTuple

from pydantic import Field

from tunefleet import __version__
from tunefleet.errors import InputError
from tunefleet.schemas.base import Message
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, Gpu, GpuLoad, Load

LIGHT: Final = "echo"
TRAINING_KINDS: Final = ("lora_sft", "sft")
KINDS: Final = (LIGHT, *TRAINING_KINDS)
_NAME: Final = r"[A-Za-z][A-Za-z0-9 ._-]*"
_CARD: Final = re.compile(rf"(?P<name>{_NAME}):(?P<gib>\d{{1,4}})(?::(?P<count>\d{{1,2}}))?")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*(s|min|h))?")
_PER_S: Final = {None: 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
DEFAULT_GPUS: Final = "none,RTX 4090:24:1,A100:80:4,H100:80:8"
_GIB = 1 << 30


class Card(NamedTuple):
    """GPU model and count of a machine; without GPUs if `gpus` is 0."""

    name: str
    gib: int
    gpus: int


NO_CARD: Final = Card("none", 0, 0)


class Plan(Message):
    """One load.

    Args:
        rate_per_s: Tasks submitted per second; as fast as possible if None.
        metrics_per_s: Journal records per second of a running task.
        for_s: Stop after this many seconds, even if tasks are left; None runs until all tasks end.
    """

    run_id: str = Field(default_factory=lambda: f"sim-{secrets.token_hex(4)}")
    workers: int = Field(ge=1)
    tasks: int = Field(ge=1)
    rate_per_s: float | None = None
    task_s: float = Field(default=1.0, ge=0)
    metrics_per_s: float = Field(default=0.0, ge=0)
    slots: int = Field(default=1, ge=1)
    kinds: tuple[str, ...] = (LIGHT,)
    gpus: tuple[Card, ...] = (NO_CARD,)
    seed: int = 0
    load_every_s: float = 30.0
    fill_first: bool = False
    register_within_s: float = Field(default=600.0, gt=0)
    for_s: float | None = None

    @property
    def tag(self) -> str:
        """The tag of its tasks and workers: `only:` keeps tasks without the tag off these workers."""
        return f"only:{self.run_id}"


class ServerConnection(Message):
    """How workers reach the server."""

    url: str
    key: str = Field(repr=False)
    link: Literal["http", "redis"] = "http"
    redis_url: str | None = Field(default=None, repr=False)
    topic: str = "tasks"
    redis_prefix: str = ""


class CrowdPlan(Message):
    """The share of one worker process: `count` workers of the plan from `first` on."""

    plan: Plan
    connection: ServerConnection
    first: int
    count: int


def read_rate(text: str) -> float:
    """Parse a rate such as `50/s`, `600/min` or `20`."""
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) / _PER_S[found[2]] if found else 0.0
    if rate <= 0:
        raise InputError(f"{text!r} is not a rate.", hint="Use tasks per second, such as 50/s, or 600/min.")
    return rate


def read_kinds(text: str) -> tuple[str, ...]:
    """Parse a list of task types.

    Raises:
        InputError: If one of them cannot be simulated.
    """
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise InputError(
            f"Tasks of the kind {', '.join(unknown) or repr(text)} cannot be simulated.",
            hint=f"Use kinds of {', '.join(KINDS)}.",
        )
    return kinds


def read_gpus(text: str) -> tuple[Card, ...]:
    """Parse a list of machines, such as `none,RTX 4090:24,A100:80:8`: name, GiB of each GPU, how many of them."""
    cards = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        found = _CARD.fullmatch(part)
        if part == NO_CARD.name:
            cards.append(NO_CARD)
        elif found and int(found["gib"]) and int(found["count"] or 1):
            cards.append(Card(found["name"], int(found["gib"]), int(found["count"] or 1)))
        else:
            raise InputError(
                f"{part!r} is not a machine.", hint="Use NAME:GIB or NAME:GIB:COUNT, such as A100:80:4, or none."
            )
    if not cards:
        raise InputError("No machine is given.", hint="Use none for machines without a GPU.")
    return tuple(cards)


def read_steps(text: str) -> tuple[int, ...]:
    """Parse a series of loads, such as `10,100,1000`; returns the numbers of workers, smallest first.

    Raises:
        InputError: If there are fewer than two, or one is not a positive number.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = sorted({int(part) for part in parts if part.isascii() and part.isdigit() and int(part) > 0})
    if len(numbers) != len(parts) or len(numbers) < 2:
        raise InputError(f"{text!r} is not a series of loads.", hint="Use numbers of workers, such as 10,100,1000.")
    return tuple(numbers)


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
