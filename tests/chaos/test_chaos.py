"""Everything at once, and everything struck: the four promises are kept.

`make chaos ROUNDS=100 SEED=7` plays more rounds. What strikes in a round follows from the seed and the round's number
alone: `make chaos ROUNDS=1 SEED=7 FIRST=57` plays round 57 of them again. `KINDS=kill` plays rounds of SIGKILLs alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.driver import Driver
from tests.chaos.world import world
from tests.integration.postgres.process import PostgresProcess
from tests.integration.redis.process import RedisProcess
from tests.libraries import required

ASKED = os.environ.get("CHAOS_ROUNDS")
ROUNDS = int(ASKED or "2")
SEED = int(os.environ.get("CHAOS_SEED", "1"))
FIRST = int(os.environ.get("CHAOS_FIRST", "0"))
KINDS = os.environ.get("CHAOS_KINDS", "all")


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.timeout(1500 if ASKED is None else 0)
def test_the_promises_are_kept_whatever_strikes(
    tmp_path: Path,
    postgres_process: Callable[[], PostgresProcess],
    redis_server: Callable[..., RedisProcess],
    free_port: Callable[[], int],
) -> None:
    required("trl")
    assert KINDS in {"all", "kill"}, f"KINDS is all or kill, not {KINDS}"
    began = time.monotonic()
    with world(tmp_path, postgres_process(), redis_server(), free_port) as made:
        driver = Driver(made, SEED, quick=KINDS == "kill")
        driver.say(f"the world stood after {time.monotonic() - began:.0f} s")
        driver.begin()
        for number in range(FIRST, FIRST + ROUNDS):
            driver.round(number)
        driver.end()
