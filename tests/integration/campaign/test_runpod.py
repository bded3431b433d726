"""Merges on RunPod against a double over real HTTP: what runs is waited for, and what failed is sent again."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.fakes.runpod import ENDPOINT, KEY, Jobs, runpod
from tunefleet.campaign.contract import CycleFailed, Later, StepFailed
from tunefleet.campaign.runpod import Merged, Merging, RunPod, Waiting
from tunefleet.campaign.service.cycle_state import Budget, BudgetError
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.campaign.steps.merge import MergeStep
from tunefleet.client.external.third_party_api import Patience
from tunefleet.errors import AuthError, UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

TOKEN = "hf_token_0123456789"
DONE = {"status": "COMPLETED", "output": {"model_repo_id": "me/merged-one", "status": "success"}}


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    with runpod() as state:
        yield state


def settings(jobs: Jobs, home: Path, **more: Any) -> CampaignSettings:
    given: dict[str, Any] = {
        "home": home, "runpod_key": SecretStr(KEY), "runpod_endpoint": ENDPOINT, "runpod_url": jobs.url,
        "hf_token": SecretStr(TOKEN), "hf_username": "me", "runpod_timeout_s": 3600.0, "runpod_max_retries": 2,
    }  # fmt: skip
    return CampaignSettings(**{**given, **more})


class Ledger(dict[str, float]):
    """What each job has taken, in seconds; with `room`, no job may take longer."""

    room: float = float("inf")

    async def check(self, seconds: float) -> None:
        if seconds > self.room:
            raise BudgetError("There is no room for a merge.")

    async def pay(self, job: str, seconds: float) -> None:
        self.setdefault(job, seconds)


async def ask_once(
    given: CampaignSettings,
    place: Path,
    *,
    retried: int = 0,
    lora: str = "org/adapter",
    now: float = 1000.0,
    ledger: Ledger | None = None,
) -> Waiting | Merged:
    """Ask as the step does: with what is kept in a file, which outlives the process."""
    known = Merging(**json.loads(place.read_text())) if place.exists() else Merging()

    async def keep(merging: Merging) -> None:
        part = place.with_suffix(".part")
        part.write_text(json.dumps(asdict(merging)))
        part.replace(place)

    endpoint = RunPod(given, now=lambda: now, patience=Patience(2, 0.01, 0.01))
    try:
        return await endpoint.merge(known.of(lora, "org/base", retried), keep, Ledger() if ledger is None else ledger)
    finally:
        await endpoint.close()


class Caller:
    """Asks with a new endpoint each time, as if the process were a new one."""

    def __init__(self, jobs: Jobs, home: Path, **more: Any) -> None:
        home.mkdir(exist_ok=True)
        self.settings, self.now, self.home = settings(jobs, home, **more), 1000.0, home

    async def __call__(self, step: str = "one", **how: Any) -> Waiting | Merged:
        return await ask_once(self.settings, self.home / f"{step}.json", now=self.now, **how)


async def test_a_job_is_sent_once_and_waited_for(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path, runpod_poll_s=600.0)
    jobs.script = [{"status": "IN_QUEUE"}, {"status": "IN_PROGRESS"}, {"status": "WARMING_UP_TOMORROW"}, DONE]
    assert await ask() == Waiting("job-1", "IN_QUEUE", 2.0)
    seen = []
    for waited in (0, 100, 100_000):
        ask.now = 1000.0 + waited
        found = await ask()
        assert isinstance(found, Waiting)
        seen.append((found.status, found.again_s))
    assert seen == [("IN_QUEUE", 2.0), ("IN_PROGRESS", 20.0), ("WARMING_UP_TOMORROW", 600.0)]
    assert await ask() == Merged("job-1", "me/merged-one")
    assert jobs.sent == [{
        "input": {
            "lora_model_id": "org/adapter", "base_model_id": "org/base", "anonimize": False, "hf_token": TOKEN,
            "hf_username": "me",
        },
        "policy": {"executionTimeout": 3_600_000},
    }]  # fmt: skip


FAILED: list[tuple[dict[str, Any], str]] = [
    ({"status": "FAILED", "error": "torch.OutOfMemoryError: CUDA out of memory."}, "ran out of memory"),
    ({"status": "COMPLETED", "output": {"error": "CUDA out of memory", "status": "failed"}}, "larger GPUs"),
    ({"status": "COMPLETED", "output": {"error": "401 Client Error: Unauthorized", "status": "failed"}}, "HF_TOKEN"),
    ({"status": "TIMED_OUT"}, "TUNEFLEET_RUNPOD_TIMEOUT_S"),
    ({"status": "FAILED", "error": "job timed out: executionTimeout exceeded"}, "TUNEFLEET_RUNPOD_TIMEOUT_S"),
    ({"status": "CANCELLED"}, "cancelled"),
    ({"status": "COMPLETED", "output": None}, "without a result"),
    ({"status": "FAILED"}, "no reason was given"),
]


@pytest.mark.parametrize(("said", "sentence"), FAILED, ids=lambda each: str(each)[:24])
async def test_a_failure_has_its_sentence_and_the_next_try_is_a_new_job(
    jobs: Jobs, tmp_path: Path, said: dict[str, Any], sentence: str
) -> None:
    ask = Caller(jobs, tmp_path)
    jobs.script = [said]
    await ask()
    with pytest.raises(StepFailed, match=sentence):
        await ask()
    jobs.script = [DONE]
    assert (await ask()).job == "job-2"
    assert await ask() == Merged("job-2", "me/merged-one")


async def test_no_more_jobs_are_sent_than_may_fail(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    jobs.script = [{"status": "FAILED", "error": "no"}]
    for _ in range(3):
        await ask()
        with pytest.raises(StepFailed, match=r"failed: no\."):
            await ask()
    for _ in range(2):
        with pytest.raises(StepFailed, match="3 merges on RunPod have failed"):
            await ask()
    assert len(jobs.sent) == 3
    assert isinstance(await ask(retried=1), Waiting), "a person who retries begins anew"


async def test_a_job_that_runs_outlives_an_outage_and_a_retry(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    await ask()
    jobs.refusal = 503
    found = await ask()
    assert isinstance(found, Waiting)
    assert "not reachable" in found.status
    jobs.refusal = None
    again = await ask(retried=1)
    assert again.job == "job-1"
    assert len(jobs.sent) == 1
    assert (await ask(retried=1, lora="org/other")).job == "job-2", "of another adapter"
    jobs.script = [DONE]
    assert await ask(retried=2, lora="org/other") == Merged("job-2", "me/merged-one")


async def test_a_job_that_was_forgotten_is_not_sent_again_but_by_a_person(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    await ask()
    jobs.script = [{"status": "GONE"}]
    for _ in range(3):
        with pytest.raises(StepFailed, match="no longer knows job job-1; no other is submitted"):
            await ask()
    assert len(jobs.sent) == 1
    assert (await ask(retried=1)).job == "job-2"


async def test_the_time_of_each_job_is_paid_and_none_is_sent_that_there_is_no_room_for(
    jobs: Jobs, tmp_path: Path
) -> None:
    ask, ledger = Caller(jobs, tmp_path), Ledger()
    jobs.script = [{"status": "FAILED", "error": "no", "executionTime": 4000}]
    await ask(ledger=ledger)
    with pytest.raises(StepFailed):
        await ask(ledger=ledger)
    assert ledger == {"job-1": 4.0}, "as RunPod says"
    jobs.script = [{"status": "CANCELLED"}]
    await ask(ledger=ledger)
    ask.now += 77.0
    with pytest.raises(StepFailed):
        await ask(ledger=ledger)
    jobs.script = [{"status": "GONE"}]
    await ask(ledger=ledger)
    ask.now += 1e6
    with pytest.raises(StepFailed):
        await ask(ledger=ledger)
    assert ledger == {"job-1": 4.0, "job-2": 77.0, "job-3": 3600.0}, "since it was sent, or all that it may take"
    ledger.room = 3599.0
    with pytest.raises(BudgetError):
        await ask(ledger=ledger, retried=1)
    assert len(jobs.sent) == 3


async def test_keys_that_another_image_quotes_are_not_told(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    quotes = f"no access with {TOKEN} (of {KEY})"
    for said in (
        {"status": "FAILED", "error": quotes},
        {"status": "COMPLETED", "output": {"error": quotes, "status": "failed"}},
    ):
        jobs.script = [said]
        await ask()
        with pytest.raises(StepFailed, match=r"no access with \*\*\* \(of \*\*\*\)") as failed:
            await ask()
        written = " ".join(path.read_text() for path in tmp_path.iterdir())
        assert not [each for each in (TOKEN, KEY) if each in f"{failed.value} {failed.value.detail} {written}"]


async def test_three_merges_run_side_by_side(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    keys = ["one", "two", "three"]
    begun = await asyncio.gather(*map(ask, keys))
    assert {each.job for each in begun} == {"job-1", "job-2", "job-3"}
    jobs.script = [DONE]
    ended = await asyncio.gather(*map(ask, keys))
    assert [each.job for each in ended] == [each.job for each in begun]


def life(given: CampaignSettings, place: Path) -> None:
    """Ask for the merge, as a server does, until it is there."""

    async def merge() -> None:
        while not isinstance(await ask_once(given, place), Merged):
            await asyncio.sleep(0.01)

    asyncio.run(merge())


def kill_once(given: CampaignSettings, place: Path, over: Callable[[], bool]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=life, args=(given, place))
    process.start()
    try:
        deadline = time.monotonic() + 120
        while not over():
            assert process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
        process.join()


async def test_a_kill_while_a_job_runs_or_is_sent_pays_for_no_other(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    await asyncio.to_thread(kill_once, ask.settings, tmp_path / "one.json", lambda: jobs.looks.get("job-1", 0) > 2)
    found = await ask()
    assert isinstance(found, Waiting)
    assert found.job == "job-1"
    jobs.script = [DONE]
    assert await ask() == Merged("job-1", "me/merged-one")
    assert len(jobs.sent) == 1

    # Taken there, and killed before the answer came: its id is lost, and nobody can be asked for it.
    jobs.answering.clear()
    other = Caller(jobs, tmp_path / "other")
    place = other.home / "one.json"
    await asyncio.to_thread(kill_once, other.settings, place, lambda: len(jobs.sent) == 2)
    jobs.answering.set()
    for _ in range(2):
        with pytest.raises(StepFailed, match="its id was lost with the response; no other is sent"):
            await other()
    assert len(jobs.sent) == 2
    assert isinstance(await other(retried=1), Waiting), "a person who retries sends another"


async def test_what_was_surely_not_taken_is_sent_again(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    for refusal, error in ((402, StepFailed), (429, StepFailed), (401, AuthError)):
        jobs.refusal = refusal
        with pytest.raises(error):
            await ask()
    with pytest.raises(UnreachableError):
        await Caller(jobs, tmp_path, runpod_url="http://127.0.0.1:9/v2")()
    jobs.refusal = None
    assert await ask() == Waiting("job-1", "IN_QUEUE", 2.0)
    jobs.refusal = 502
    with pytest.raises(UnreachableError, match="it is unknown whether it has accepted the job"):
        await ask("other")
    jobs.refusal = None
    with pytest.raises(StepFailed, match="no other is sent"):
        await ask("other")


async def test_who_may_not_is_told_and_no_secret_is_written(
    jobs: Jobs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(AuthError, match="RUNPOD_API_KEY and TUNEFLEET_RUNPOD_ENDPOINT"):
            await Caller(jobs, tmp_path, runpod_key=SecretStr("wrong-key-000"))()
        with pytest.raises(StepFailed, match="TUNEFLEET_RUNPOD_ENDPOINT"):
            await Caller(jobs, tmp_path, runpod_endpoint="other")()
        with pytest.raises(CycleFailed, match="needs HF_TOKEN"):
            await Caller(jobs, tmp_path, hf_token=None)()
        await Caller(jobs, tmp_path)()
        jobs.refusal = 503
        assert isinstance(await Caller(jobs, tmp_path)(), Waiting)
    written = " ".join(path.read_text() for path in tmp_path.iterdir())
    for secret in (KEY, TOKEN, "wrong-key-000"):
        assert secret not in " ".join([*caplog.messages, written])
    assert len(jobs.sent) == 1


async def test_code_of_the_base_is_run_only_where_the_campaign_asks_for_it(jobs: Jobs, tmp_path: Path) -> None:
    async def keep(merging: Merging) -> None:
        return

    endpoint = RunPod(settings(jobs, tmp_path))
    for code in (False, True):
        known = Merging(lora="org/adapter", base="org/base", revision="c1")
        await endpoint.merge(known, keep, Ledger(), code=code, again=code)
    await endpoint.close()
    assert [each["input"].get("merge_anew") for each in jobs.sent] == [None, True]
    assert [each["input"]["lora_revision"] for each in jobs.sent] == ["c1", "c1"]
    assert [each["input"].get("trust_remote_code") for each in jobs.sent] == [None, True]


async def test_the_step_waits_and_leaves_the_repository(jobs: Jobs, tmp_path: Path) -> None:
    row = {"name": "org/rows", "field_instruction": "q", "field_output": "a"}
    limits = {"max_cost": 7200, "cost_per_merge_second": 1}
    spec = CampaignSpec.model_validate({"model_repo": "org/base", "datasets": [row], "budget": limits})
    chosen = {"ref": "org/adapter", "form": "adapter", "name": "one"}
    outcomes: dict[StepName, Any] = {
        StepName.SELECT: {"candidate": chosen}, StepName.SUBMIT: {"base": {"repo": "org/base"}}
    }  # fmt: skip
    lines: list[str] = []
    told: list[str] = []

    async def say(text: str) -> None:
        lines.append(text)

    async def report(state: Any, found: Activity) -> None:
        told.append(f"{found.what} {found.of}")

    async def keep(state: Any, kept: dict[str, Any]) -> None:
        state.kept = kept

    async def budget(state: Any, *, ordered: bool) -> Budget:
        assert ordered, "what the cycle has spent already counts"
        return Budget(3600.0 if room else 3601.0, (), 0)

    async def spend(state: Any, what: str, amount: float, key: str) -> None:
        spent.append((what, amount, key))

    room, spent = False, list[tuple[str, float, str]]()
    context: Any = SimpleNamespace(
        spec=spec, settings=settings(jobs, tmp_path, use_runpod=True), outcome=outcomes.__getitem__, log=say,
        state=SimpleNamespace(kept=None, retried=0, outcomes={}, order_key="camp-1/0"), client=None,
        clock=SimpleNamespace(wall=lambda: 50.0),
        repository=SimpleNamespace(report=report, keep=keep, budget=budget, spend=spend),
    )  # fmt: skip
    step = MergeStep()
    intent = await step.plan(context)
    assert intent["on"] == "runpod"
    with pytest.raises(BudgetError, match="a merge costs 0 plus up to 3600 for its duration, and max_cost is 7200"):
        await step.act(context, intent)
    assert jobs.sent == []
    room = True
    assert await step.act(context, intent) == Later(52.0, "the job job-1 at RunPod is IN_QUEUE")
    assert told == []
    jobs.script = [{"status": "IN_PROGRESS"}]
    assert isinstance(await step.act(context, intent), Later)
    assert told == ["merging the job job-1 at RunPod"]
    jobs.script = [{**DONE, "executionTime": 2500}]
    assert await step.act(context, intent) == {"url": "hf://me/merged-one", "form": "model", "job": "job-1"}
    assert lines == ["RunPod has merged one (org/adapter) into me/merged-one"]
    assert spent == [("merge", 2.5, "camp-1/0/merge/job-1")]
    ours = {**intent, "candidate": {**chosen, "on_fleet": True}}
    with pytest.raises(CycleFailed, match="on this server"):
        await step.act(context, ours)


async def test_a_merge_whose_job_is_cancelled_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    from tunefleet.workloads.runpod import handler

    task = asyncio.create_task(handler._ran(["-c", "import time; time.sleep(600)"], dict(os.environ)))
    started: list[Any] = []
    real = asyncio.create_subprocess_exec

    async def begun(*given: Any, **more: Any) -> Any:
        started.append(await real(*given, **more))
        return started[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begun)
    while not started:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started[0].returncode == -9
