"""Engines as processes of their own: found warm, replaced, killed, left, and ended for a job that gets their GPU."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.libraries import required
from tunefleet.runtime.warm import engine_registry
from tunefleet.workloads.engine import client
from tunefleet.workloads.engine.client import WarmEngine, connect
from tunefleet.workloads.engine.protocol import EngineModel, Request, Sampling

required("torch", "peft")
pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

MODEL = "builtin:gsm8k-llama-2m"
PATIENCE_S = 120.0
FIRST = EngineModel(MODEL, "first")
SECOND = EngineModel(MODEL, "second", options={"dtype": "bfloat16"})
GPU = "GPU-there-is-none"
LEAVER = """
import sys
from tunefleet.workloads.engine.protocol import EngineModel, Request, Sampling
from tunefleet.workloads.engine.client import connect
engine = connect(EngineModel(sys.argv[1], "first"), name=sys.argv[2])
for piece in engine.stream(Request(0, "Tell me all.", Sampling(max_tokens=480, min_tokens=480, seed=1))):
    print(engine.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TUNEFLEET_WORKER_KEY", "a-key-of-the-worker")
    monkeypatch.setenv("TUNEFLEET_SECRET_WORD", "a-secret-word")
    # On a busy machine an engine may take long to start, to answer, to see that somebody has left, and to end.
    for module, name in (
        (client, "_BIND_S"),
        (client, "_PARTING_S"),
        (engine_registry, "_ANSWER_S"),
        (engine_registry, "_END_S"),
    ):
        monkeypatch.setattr(module, name, PATIENCE_S)
    yield str(tmp_path)
    for engine in engine_registry.running():
        if engine.site == str(tmp_path):
            engine_registry.leave(engine, force=True)


def greedy(engine: WarmEngine, *texts: str, tokens: int = 12) -> list[str]:
    drawn = Sampling(temperature=0, max_tokens=tokens, min_tokens=tokens)
    found = {
        answer.key: answer for answer in engine.generate([Request(at, text, drawn) for at, text in enumerate(texts)])
    }
    return [found[at].choices[0].text for at in range(len(texts))]


def until(good: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not good():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def live(site: str) -> dict[str, engine_registry.EngineProcess]:
    return {engine.model: engine for engine in engine_registry.running() if engine.site == site}


def test_an_engine_stays_warm_for_its_model_and_for_no_other(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"A train has {number} cars" for number in range(6)]
    engine = connect(FIRST, name=site)
    before = greedy(engine, *texts)
    pid = engine.pid
    engine.close()

    again = connect(FIRST, name=site)
    assert (again.pid, again.was_loaded) == (pid, True)
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"a-key-of-the-worker" not in environment
    assert b"a-secret-word" not in environment
    folder = engine_registry.base_of((), site).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # It has nothing of who started it: neither session nor group.
    assert os.getpgid(pid) == pid

    # Killed in the middle of a call: another one answers what is left, and the same.
    answers = again.generate([Request(at, text, Sampling(temperature=0, max_tokens=12, min_tokens=12))
                              for at, text in enumerate(texts)])  # fmt: skip
    first = next(answers)
    os.kill(pid, signal.SIGKILL)
    rest = [first, *answers]
    assert sorted((answer.key, answer.choices[0].text) for answer in rest) == list(enumerate(before))
    pieces = again.stream(Request(0, texts[0], Sampling(max_tokens=60, min_tokens=60)))
    heard = next(pieces)
    os.kill(again.pid, signal.SIGKILL)
    heard += "".join(pieces)
    assert len(heard) > 60
    again.close()

    # Another model, though nobody uses the first: it is replaced, and answers as itself.
    other = connect(SECOND, name=site)
    assert list(live(site)) == ["second"]
    assert not other.was_loaded
    # One that is in use is left alone: on a CPU both live.
    monkeypatch.setattr(client, "_PARTING_S", 0.0)
    beside = connect(FIRST, idle_s=0.2, name=site)
    assert set(live(site)) == {"first", "second"}
    assert greedy(beside, *texts) == before

    # Who is killed frees what he has asked: then nobody is connected, and the engine ends by itself.
    leaver = subprocess.Popen(
        [sys.executable, "-c", LEAVER, MODEL, site],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ},
        text=True,
    )
    assert leaver.stdout is not None
    assert leaver.stdout.readline() == f"{beside.pid}\n"
    beside.close()
    left = live(site)["first"]
    assert not engine_registry.leave(left)
    leaver.kill()
    leaver.communicate()
    until(lambda: not left.alive)
    assert not left.base.with_suffix(".sock").exists()
    other.close()
    until(lambda: engine_registry.end_idle(site) or not live(site))


def test_an_engine_makes_way_for_a_job_that_gets_its_gpu(site: str) -> None:
    engine = connect(FIRST, gpus=[GPU], name=site)
    found = live(site)["first"]
    assert engine_registry.is_on(GPU)
    assert engine_registry.is_one([1, found.pid], GPU)
    engine_registry.free_gpus([GPU], wants_engine=True)
    assert found.alive
    engine.close()
    engine_registry.free_gpus(["GPU-of-others"], wants_engine=False)
    assert found.alive
    engine_registry.free_gpus([GPU], wants_engine=False)
    until(lambda: not found.alive)
