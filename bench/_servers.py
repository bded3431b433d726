"""One server against three on the same PostgreSQL, and how soon a killed leader is followed; `stores.py` prints it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
from _common import free_port, interval
from _report import Figure, Peer, Ratio, Report

from tests.integration.postgres.process import PostgresProcess
from tests.integration.servers.trio import QUICK, Trio, named, submit

CLIENTS = 8
PATIENCE_S = 60.0


@contextmanager
def servers(root: Path, postgres: PostgresProcess, number: int) -> Iterator[Trio]:
    folder = root / f"servers-{number}"
    folder.mkdir()
    trio = Trio(folder, postgres, free_port)
    try:
        trio.start(*range(number))
        yield trio
    finally:
        trio.end()


def rate(trio: Trio, work: Callable[[httpx.Client], object], times: int) -> float:
    """Return requests a second, of some clients that each know one of the servers."""

    def ask(number: int) -> None:
        with trio.client(number % len(trio.processes)) as client:
            for _ in range(times):
                work(client)

    begun = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(ask, range(CLIENTS)))
    return CLIENTS * times / (time.perf_counter() - begun)


def compare(root: Path, postgres: PostgresProcess, turns: int, times: int, told: Report) -> None:
    """Print what one server and three of them answer a second, in turns."""
    names = count()
    questions: dict[str, Callable[[httpx.Client], object]] = {
        "submits": lambda client: submit(client, named(QUICK, f"flow-{next(names)}")),
        "lists of 50 tasks": lambda client: client.get("/tasks", params={"limit": 50}).raise_for_status(),
    }
    with servers(root, postgres, 1) as one, servers(root, postgres, 3) as three:
        for name, work in questions.items():
            pairs = [(rate(one, work, times), rate(three, work, times)) for _ in range(turns)]
            ratios = [theirs / ours for ours, theirs in pairs]
            low, high = interval(ratios)
            told.row(
                f"{name}, three servers (ratio: three ÷ one)", Figure.of([three_ for _, three_ in pairs], "1/s"),
                Peer.of("Tunefleet, one server", "", [one_ for one_, _ in pairs], "1/s"), ratio=Ratio.of(ratios),
                samples=turns,
            )  # fmt: skip
            ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
            print(
                f"{name:18} one    {ours:10,.0f}/s   three      {theirs:10,.0f}/s   "
                f"ratio {statistics.median(ratios):.2f} [{low:.2f}, {high:.2f}]",
                flush=True,
            )


def kills(root: Path, postgres: PostgresProcess, times: int, told: Report) -> None:
    """Print how long there is no leader after one was killed."""
    taken = []
    folder = root / "kills"
    folder.mkdir()
    trio = Trio(folder, postgres, free_port)
    try:
        trio.start(0, 1, 2)
        for _ in range(times):
            leader, epoch = trio.leader(), trio.epoch()
            assert leader is not None
            trio.processes[leader].kill()
            begun = time.monotonic()
            trio.processes[leader].wait()
            while trio.epoch() == epoch:
                if time.monotonic() - begun > PATIENCE_S:
                    raise SystemExit("No other server took the lead.")
                time.sleep(0.02)
            taken.append(time.monotonic() - begun)
            trio.start(leader)
    finally:
        trio.end()
    print(
        f"a killed leader is followed after {statistics.median(taken):.2f} s, at most {max(taken):.2f} s "
        f"({times} kills; the promise is 5 s)",
        flush=True,
    )
    told.row(
        "a killed leader of three servers is followed", Figure.of(taken, "s"), samples=times,
        note=f"at most {max(taken):.2f} s; our own limit 5 s",
    )  # fmt: skip
