"""What is asked of a base model, and where: the same question has the same name, wherever it is answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.campaign import base_model_check
from tunefleet.campaign.contract import Base, CycleFailed, Misconfigured, StepFailed
from tunefleet.settings import CampaignSettings
from tunefleet.spec import load_task_spec
from tunefleet.spec.documents.campaign_document import CampaignSpec

ROW = {"name": "org/rows", "field_instruction": "q", "field_output": "a"}
GPU = {"resources": {"hardware": {"gpu": {"count": 2}, "cpu": 2}}}


def spec(**more: Any) -> CampaignSpec:
    return CampaignSpec.model_validate({"model_repo": "org/base", "datasets": [ROW], **more})


class Asked:
    """A desk that remembers what it was asked to run."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.documents: list[dict[str, Any]] = []
        self.inputs: list[Any] = []
        self._answer = answer

    async def shared(self, what: str, body: Any, inputs: Any, *, leaves: Any) -> list[Any]:
        self.documents.append(body)
        self.inputs.append(inputs)
        if self._answer is not None:
            raise self._answer
        result = {"parameters": 7, "vocabulary": {"rows": 5}}
        return [SimpleNamespace(id="task-1", result={"result": result})]

    async def left(self, task_id: str, name: str) -> Any:
        return SimpleNamespace(id="artifact-1", digest="sha256:1")


async def ask(monkeypatch: pytest.MonkeyPatch, wanted: CampaignSpec, desk: Asked, **settings: Any) -> Any:
    monkeypatch.setattr(base_model_check, "CampaignTaskClient", lambda context: desk)
    provider = SimpleNamespace(fetches_from_store=False, name="local")
    context: Any = SimpleNamespace(spec=wanted, settings=CampaignSettings(**settings), provider=provider)
    return await base_model_check.verified(context)


async def test_one_question_has_one_name_wherever_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Asked()
    same = [spec(), spec(**GPU), spec(gate={"min_gain": 1}, random_seed=7)]
    others = [
        spec(model_repo="org/other"), spec(model={"revision": "v2"}), spec(tokenizer_id="org/words"),
        spec(model={"verify": "files"}), spec(inputs={"model_repo": "sha256:2"}),
    ]  # fmt: skip
    for each in [*same, *others]:
        await ask(monkeypatch, each, desk)
    names = [each["metadata"]["name"] for each in desk.documents]
    assert len(set(names[: len(same)])) == 1
    assert len(set(names)) == 1 + len(others)
    for each in desk.documents:
        load_task_spec(each["spec"])
    assert desk.inputs[-1] == {names[-1]: {"model.source.identifier": "sha256:2"}}


async def test_no_gpu_is_taken_where_none_is_to_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Asked()
    await ask(monkeypatch, spec(**GPU), desk)
    await ask(monkeypatch, spec(**GPU), desk, use_cpu=True)
    with_gpu, without = (load_task_spec(each["spec"]) for each in desk.documents)
    assert with_gpu.devices.count == 2
    assert without.devices.count == 0
    assert without.resources.hardware.cpu == 2


async def test_a_model_with_another_tokenizer_takes_the_place_of_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = spec(tokenizer_id="./words", inputs={"tokenizer_id": "sha256:3"})
    desk = Asked()
    found = await ask(monkeypatch, wanted, desk)
    (given,) = desk.inputs[0].values()
    assert given == {"model.tokenizer": "sha256:3"}
    assert base_model_check.base_in(wanted, {"model": found}) == Base(repo="org/base", digest="sha256:1")
    assert base_model_check.base_in(spec(), {"model": await ask(monkeypatch, spec(), Asked())}) == Base(repo="org/base")
    assert base_model_check.base_in(spec(), {}) == Base(repo="org/base"), "a cycle that was begun before goes on"


async def test_only_what_trying_again_does_not_mend_is_the_files_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured, match=r"org/base cannot be trained; nothing was ordered\. why"):
        await ask(monkeypatch, spec(), Asked(CycleFailed("why")))
    with pytest.raises(StepFailed, match="the worker was lost"):
        await ask(monkeypatch, spec(), Asked(StepFailed("the worker was lost")))
