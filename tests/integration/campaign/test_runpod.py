"""Merges on RunPod against a double over real HTTP: what runs is waited for, and what failed is sent again."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.fakes.runpod import ENDPOINT, KEY, Jobs, runpod
from tunefleet.campaign.contract import CycleFailed, Later, StepFailed
from tunefleet.campaign.merging.runpod import Merged, RunPod, Waiting
from tunefleet.campaign.steps.merge import MergeStep
from tunefleet.client.service import Patience
from tunefleet.errors import AuthError, UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.services.campaigns.activity import Activity
from tunefleet.settings import CampaignSettings
from tunefleet.spec.campaign import CampaignSpec

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


class Caller:
    """Asks as the step does: with a new endpoint each time, as if the process were a new one."""

    def __init__(self, jobs: Jobs, home: Path, **more: Any) -> None:
        self.settings, self.now = settings(jobs, home, **more), 1000.0

    async def __call__(self, key: str = "camp-1/0/merge") -> Waiting | Merged:
        endpoint = RunPod(self.settings, now=lambda: self.now, patience=Patience(2, 0.01, 0.01))
        try:
            return await endpoint.merge(key, "org/adapter", "org/base")
        finally:
            await endpoint.close()


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
    ({"status": "TIMED_OUT"}, "RUNPOD_TIMEOUT"),
    ({"status": "FAILED", "error": "job timed out: executionTimeout exceeded"}, "RUNPOD_TIMEOUT"),
    ({"status": "CANCELLED"}, "cancelled"),
    ({"status": "COMPLETED", "output": None}, "without a result"),
    ({"status": "FAILED"}, "no reason was given"),
    ({"status": "GONE"}, "does not know the job job-1"),
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
        with pytest.raises(StepFailed, match=r"has failed: no\."):
            await ask()
    for _ in range(2):
        with pytest.raises(StepFailed, match="3 merges on RunPod have failed"):
            await ask()
    assert len(jobs.sent) == 3
    assert isinstance(await ask("camp-1/0.1/merge"), Waiting), "a person who retries begins anew"


async def test_three_merges_run_side_by_side(jobs: Jobs, tmp_path: Path) -> None:
    ask = Caller(jobs, tmp_path)
    keys = [f"camp-{number}/0/merge" for number in range(3)]
    begun = await asyncio.gather(*map(ask, keys))
    assert {each.job for each in begun} == {"job-1", "job-2", "job-3"}
    jobs.script = [DONE]
    ended = await asyncio.gather(*map(ask, keys))
    assert [each.job for each in ended] == [each.job for each in begun]


def life(given: CampaignSettings) -> None:
    """Ask for the merge, as a server does, until it is there."""

    async def merge() -> None:
        while True:
            endpoint = RunPod(given, patience=Patience(2, 0.01, 0.01))
            try:
                if isinstance(await endpoint.merge("camp-1/0/merge", "org/adapter", "org/base"), Merged):
                    return
            finally:
                await endpoint.close()
            await asyncio.sleep(0.01)

    asyncio.run(merge())


def kill_once(given: CampaignSettings, over: Callable[[], bool]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=life, args=(given,))
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
    await asyncio.to_thread(kill_once, ask.settings, lambda: jobs.looks.get("job-1", 0) > 2)
    found = await ask()
    assert isinstance(found, Waiting)
    assert found.job == "job-1"
    jobs.script = [DONE]
    assert await ask() == Merged("job-1", "me/merged-one")
    assert len(jobs.sent) == 1

    # Taken there, and killed before the answer came: its id is lost, and nobody can be asked for it.
    jobs.answering.clear()
    other = Caller(jobs, tmp_path / "other")
    await asyncio.to_thread(kill_once, other.settings, lambda: len(jobs.sent) == 2)
    jobs.answering.set()
    for _ in range(2):
        with pytest.raises(StepFailed, match="its id was lost with the answer: none is sent again"):
            await other()
    assert len(jobs.sent) == 2
    assert isinstance(await other("camp-1/0.1/merge"), Waiting), "a person who retries sends another"


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
    with pytest.raises(UnreachableError, match="whether it has taken the job is not known"):
        await ask("camp-1/1/merge")
    jobs.refusal = None
    with pytest.raises(StepFailed, match="none is sent again"):
        await ask("camp-1/1/merge")


async def test_who_may_not_is_told_and_no_secret_is_written(
    jobs: Jobs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(AuthError, match="RUNPOD_API_KEY and RUNPOD_ENDPOINT_ID"):
            await Caller(jobs, tmp_path, runpod_key=SecretStr("wrong-key-000"))()
        with pytest.raises(StepFailed, match="RUNPOD_ENDPOINT_ID"):
            await Caller(jobs, tmp_path, runpod_endpoint="other")()
        with pytest.raises(CycleFailed, match="needs HF_TOKEN"):
            await Caller(jobs, tmp_path, hf_token=None)()
        await Caller(jobs, tmp_path)()
        jobs.refusal = 503
        with pytest.raises(UnreachableError):
            await Caller(jobs, tmp_path)()
    written = " ".join(path.read_text() for path in (tmp_path / "runpod").iterdir())
    for secret in (KEY, TOKEN, "wrong-key-000"):
        assert secret not in " ".join([*caplog.messages, written])
    assert len(jobs.sent) == 1


async def test_the_step_waits_and_leaves_the_repository(jobs: Jobs, tmp_path: Path) -> None:
    row = {"name": "org/rows", "field_instruction": "q", "field_output": "a"}
    spec = CampaignSpec.model_validate({"model_repo": "org/base", "datasets": [row]})
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

    context: Any = SimpleNamespace(
        spec=spec, settings=settings(jobs, tmp_path, use_runpod=True), outcome=outcomes.__getitem__, log=say,
        state=SimpleNamespace(key=lambda step: f"camp-1/0/{step}", campaign_id="camp-1"), client=None,
        clock=SimpleNamespace(wall=lambda: 50.0), book=SimpleNamespace(report=report),
    )  # fmt: skip
    step = MergeStep()
    intent = await step.plan(context)
    assert intent["on"] == "runpod"
    assert await step.act(context, intent) == Later(52.0, "the job job-1 at RunPod is IN_QUEUE")
    assert told == []
    jobs.script = [{"status": "IN_PROGRESS"}]
    assert isinstance(await step.act(context, intent), Later)
    assert told == ["merging the job job-1 at RunPod"]
    jobs.script = [DONE]
    assert await step.act(context, intent) == {"url": "hf://me/merged-one", "form": "model", "job": "job-1"}
    assert lines == ["RunPod has merged one into me/merged-one"]
    ours = {**intent, "candidate": {**chosen, "on_fleet": True}}
    with pytest.raises(CycleFailed, match="on this server"):
        await step.act(context, ours)
