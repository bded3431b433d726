"""Secrets in tasks that run inside the worker: the executor has them, and what is told of the task does not."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import InputError
from tunefleet.executors.base import LightExecutor
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_link import MergedTask, Offer
from tunefleet.worker.jobs.inline_tasks import run_light

SECRETS = Secrets({"TOKEN": "value-of-token"})


def offer(**spec: Any) -> Offer:
    child = MergedTask(token="c", task_id="task-2", workflow_id="wf", attempt=1, name="c", spec=spec)
    return Offer(
        token="t", task_id="task-1", workflow_id="wf", attempt=1, kind="echo", name="t", spec=spec, merged=(child,)
    )


class Curious(LightExecutor):
    """Remembers what it was given, and fails with it."""

    kind = "echo"

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.seen: list[Any] = []

    def run(self, offer: Offer) -> dict[str, Any]:
        self.seen = [offer.spec, *(each.spec for each in offer.merged)]
        raise self.error(f"It refused {offer.spec['key']}.")


def test_a_result_names_the_secret_and_not_its_value() -> None:
    finish = run_light(EchoExecutor(), offer(data={"items": ["use ${secret:TOKEN}"]}), SECRETS)
    assert finish.outcome == "completed"
    assert finish.result["items"][0]["output"] == "use ${secret:TOKEN}"
    assert "value-of-token" not in finish.model_dump_json()


@pytest.mark.parametrize("error", [RuntimeError, InputError])
def test_the_executor_sees_the_value_and_neither_its_error_nor_the_log_tells_it(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    executor = Curious(error)
    finish = run_light(executor, offer(key="${secret:TOKEN}"), SECRETS)
    assert executor.seen == [{"key": "value-of-token"}] * 2
    assert "It refused ${secret:TOKEN}." in str(finish.error)
    assert "value-of-token" not in finish.model_dump_json() + caplog.text


def test_a_worker_without_the_secret_says_which() -> None:
    finish = run_light(EchoExecutor(), offer(key="${secret:OTHER}"), SECRETS)
    assert (finish.outcome, finish.reason) == ("failed", "bad_input")
    assert "OTHER" in str(finish.error)
