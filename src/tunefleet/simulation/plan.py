"""What is to be simulated, checked before anything starts."""

from __future__ import annotations

import re
import secrets
from typing import Final, Literal, NamedTuple

from pydantic import Field

from tunefleet.errors import InputError
from tunefleet.schemas.base import Message

LIGHT: Final = "echo"
TRAININGS: Final = ("lora_sft", "sft")
KINDS: Final = (LIGHT, *TRAININGS)
_NAME: Final = r"[A-Za-z][A-Za-z0-9 ._-]*"
_CARD: Final = re.compile(rf"(?P<name>{_NAME}):(?P<gib>\d{{1,4}})(?::(?P<count>\d{{1,2}}))?")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*(s|min|h))?")
_PER_S: Final = {None: 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
DEFAULT_GPUS: Final = "none,RTX 4090:24:1,A100:80:4,H100:80:8"


class Card(NamedTuple):
    """The GPUs of a machine; none if `gpus` is 0."""

    name: str
    gib: int
    gpus: int


NO_CARD: Final = Card("none", 0, 0)


class Plan(Message):
    """One load.

    Args:
        rate_per_s: How many are submitted a second; as fast as it goes if None.
        metrics_per_s: How many journal records a running task writes a second.
        for_s: End after so many seconds of running, whatever is left; when all is done if None.
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
    come_within_s: float = Field(default=600.0, gt=0)
    for_s: float | None = None

    @property
    def tag(self) -> str:
        """The tag of its tasks and workers: a worker with it takes tasks that ask for it, and no others."""
        return f"only:{self.run_id}"


class Meeting(Message):
    """Where workers and server meet."""

    url: str
    key: str = Field(repr=False)
    link: Literal["http", "redis"] = "http"
    redis_url: str | None = Field(default=None, repr=False)
    topic: str = "tasks"
    redis_prefix: str = ""


class CrowdPlan(Message):
    """What one process of workers is told: its share of the plan, from worker `first` on."""

    plan: Plan
    meeting: Meeting
    first: int
    count: int


def read_rate(text: str) -> float:
    """Read a rate such as `50/s`, `600/min` or `20`."""
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) / _PER_S[found[2]] if found else 0.0
    if rate <= 0:
        raise InputError(f"{text!r} is not a rate.", hint="Write tasks a second, such as 50/s, or 600/min.")
    return rate


def read_kinds(text: str) -> tuple[str, ...]:
    """Read a list of task kinds.

    Raises:
        InputError: If one of them cannot be simulated.
    """
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise InputError(
            f"Tasks of the kind {', '.join(unknown) or repr(text)} cannot be simulated.",
            hint=f"Name some of {', '.join(KINDS)}: one that runs in the worker, and trainings.",
        )
    return kinds


def read_gpus(text: str) -> tuple[Card, ...]:
    """Read a list of machines, such as `none,RTX 4090:24,A100:80:8`: name, GiB of each GPU, how many of them."""
    cards = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        found = _CARD.fullmatch(part)
        if part == NO_CARD.name:
            cards.append(NO_CARD)
        elif found and int(found["gib"]) and int(found["count"] or 1):
            cards.append(Card(found["name"], int(found["gib"]), int(found["count"] or 1)))
        else:
            raise InputError(
                f"{part!r} is no machine.", hint="Write NAME:GIB or NAME:GIB:COUNT, such as A100:80:4, or none."
            )
    if not cards:
        raise InputError("No machine is named.", hint="Write none for machines without a GPU.")
    return tuple(cards)


def read_steps(text: str) -> tuple[int, ...]:
    """Read a series of loads, such as `10,100,1000`; returns the numbers of workers, smallest first.

    Raises:
        InputError: If there are fewer than two, or one is none.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = sorted({int(part) for part in parts if part.isascii() and part.isdigit() and int(part) > 0})
    if len(numbers) != len(parts) or len(numbers) < 2:
        raise InputError(f"{text!r} is no series of loads.", hint="Write numbers of workers, such as 10,100,1000.")
    return tuple(numbers)
