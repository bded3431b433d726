"""What campaigns read from the hub and put there, over real HTTP: whole models that were made, a base's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from pydantic import SecretStr

from tests.fakes.hub import Hub, Repo
from tests.integration.merge.hubs import asked
from tunefleet.campaign import verifying
from tunefleet.campaign.contract import Candidate, Later, Progress
from tunefleet.campaign.steps.evaluate import of_candidate
from tunefleet.campaign.steps.merge import MergeStep
from tunefleet.campaign.steps.publish import PublishStep
from tunefleet.campaign.steps.submit import base_of, chosen_base
from tunefleet.campaign.steps.wait import WaitStep
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.settings import CampaignSettings
from tunefleet.spec.campaign import CampaignSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"small", "config.json": b"{}"}
WHOLE = {
    "config.json": b"{}", "model.safetensors": b"all of it", "tokenizer.json": b"{}", "README.md": b"theirs",
    "pytorch_model.bin": b"a pickle", "modeling.py": b"code", "checkpoint-5/model.safetensors": b"an earlier one",
}  # fmt: skip


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # it speaks to a service that the double lacks
    with asked(monkeypatch, tmp_path / "cache") as served:
        monkeypatch.setenv("HF_ENDPOINT", served.hub.url)
        served.hub.repos = {"m/lora": Repo({"main": dict(ADAPTER)}), "m/whole": Repo({"main": dict(WHOLE)})}
        yield served.hub


class Played:
    """A cycle behind `submit`, with what a provider has made."""

    def __init__(self, *made: str, **more: Any) -> None:
        row = {"name": "org/rows", "field_instruction": "q", "field_output": "a"}
        self.spec = CampaignSpec.model_validate({"model_repo": "org/base", "datasets": [row], **more})
        self.settings = CampaignSettings(hf_username="me", hf_token=SecretStr("writer"), check_interval_s=5.0)
        self.made = tuple(Candidate(ref=each, form=None, name=each) for each in made)
        self.lines: list[str] = []
        self.told: list[str] = []
        self.fetched = 0
        measured = {"task_id": "task-e", "metrics": {"loss": {"value": 1.0}}, "loss": 1.0}
        order = {"ticket": "t", "key": "k", "provider": "gradients", "base": {"repo": "org/base"}}
        chunk = {"rows": 2, "digest": "c"}
        data = {"chunk": chunk, "test": chunk, "index": 0, "chunks": 1, "epoch": 0, "to": None}
        self.outcomes: dict[StepName, Any] = {
            StepName.DATA: data,
            StepName.SUBMIT: order,
            StepName.EVALUATE: {"base": measured, "promoted": None},
            StepName.GATE: {"passed": True, "reason": "It is better.", "against": {}},
        }
        self.measured = measured

    @property
    def context(self) -> Any:
        state = SimpleNamespace(name="daily", number=3, campaign_id="camp-1", key=lambda *_: "k")
        book = SimpleNamespace(spend=self._nothing, report=self._report, published=self._none)
        provider = SimpleNamespace(name="gradients", look=self._look, fetches_from_store=False)
        client = SimpleNamespace(artifacts=SimpleNamespace(fetch=self._fetch))
        return SimpleNamespace(
            spec=self.spec, settings=self.settings, outcome=self.outcomes.__getitem__, log=self._log, state=state,
            book=book, provider=provider, client=client, clock=SimpleNamespace(wall=lambda: 50.0),
        )  # fmt: skip

    async def do(self, step: Any) -> Any:
        intent = await step.plan(self.context)
        done = await step.act(self.context, intent)
        if not isinstance(done, Later):
            self.outcomes[step.name] = done
        return done

    async def choose(self, number: int) -> None:
        candidate = self.outcomes[StepName.WAIT]["candidates"][number]
        self.outcomes[StepName.SELECT] = {"candidate": candidate, "evaluation": self.measured, "loss": 1.0}

    async def _look(self, ticket: str) -> Progress:
        return Progress("succeeded", "success", self.made)

    async def _log(self, text: str) -> None:
        self.lines.append(text)

    async def _report(self, state: Any, found: Any) -> None:
        self.told.append(found.what)

    async def _none(self, *_: Any) -> list[int]:
        return []

    async def _nothing(self, *_: Any) -> None:
        return

    async def _fetch(self, artifact: str, folder: Path, *, on_progress: Any) -> Path:
        self.fetched += 1
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "model.safetensors").write_bytes(artifact.encode())
        return Path(folder)


async def test_a_repository_says_whether_it_holds_an_adapter_or_a_whole_model(hub: Hub) -> None:
    cycle = Played("m/lora", "m/whole", "m/gone", "no name of the hub")
    made = (await cycle.do(WaitStep()))["candidates"]
    assert [(each["form"], each["revision"]) for each in made] == [
        ("adapter", None), ("model", COMMIT), ("adapter", None), ("adapter", None),
    ]  # fmt: skip
    blocks, _ = of_candidate(cycle.spec, chosen_base(cycle.context), Candidate(**made[1]))
    assert blocks == {"model": {"source": {"identifier": "m/whole", "revision": COMMIT}}}
    blocks, _ = of_candidate(cycle.spec, chosen_base(cycle.context), Candidate(**made[0]))
    assert blocks["model"]["adapters"] == [{"path": "m/lora"}]


async def test_what_was_made_waits_for_a_hub_that_is_away(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    there = hub.url
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    cycle = Played("m/whole")
    waits = await cycle.do(WaitStep())
    assert isinstance(waits, Later)
    assert waits.until == 55.0
    assert "what was made cannot be looked at: The hub cannot be reached for hf://m/whole" in waits.why
    monkeypatch.setenv("HF_ENDPOINT", there)
    assert (await cycle.do(WaitStep()))["candidates"][0]["form"] == "model"


async def test_a_whole_model_is_taken_as_it_is_and_a_copy_is_published(hub: Hub, tmp_path: Path) -> None:
    to = tmp_path / "published"
    cycle = Played("m/whole", publish={"to": str(to)}, merge={"on": "runpod"})
    await cycle.do(WaitStep())
    await cycle.choose(0)
    merged = await cycle.do(MergeStep())
    assert merged["url"] == "hf://m/whole"
    assert "m/whole is a whole model: nothing is merged, it is taken as it is" in cycle.lines
    assert (await cycle.do(PublishStep()))["url"] == str(to)
    assert {path.name for path in to.rglob("*")} == {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert (to / "model.safetensors").read_bytes() == WHOLE["model.safetensors"]
    card = (to / "README.md").read_text()
    assert f"`hf://m/whole` as it is, commit `{COMMIT}`" in card
    assert "downloading" in cycle.told
    assert "publishing" in cycle.told


async def test_nothing_but_safetensors_is_passed_on(hub: Hub, tmp_path: Path) -> None:
    del hub.repos["m/whole"].branches["main"]["model.safetensors"]
    cycle = Played("m/whole", publish={"to": str(tmp_path / "published")})
    await cycle.do(WaitStep())
    await cycle.choose(0)
    await cycle.do(MergeStep())
    with pytest.raises(NotFoundError, match="hf://m/whole has no weights as safetensors"):
        await cycle.do(PublishStep())


async def test_a_whole_model_that_is_published_nowhere_stays_the_one_that_was_measured(hub: Hub) -> None:
    cycle = Played("m/whole", publish={"to": "none"})
    await cycle.do(WaitStep())
    await cycle.choose(0)
    merged = await cycle.do(MergeStep())
    assert await cycle.do(PublishStep()) == {"url": "hf://m/whole"}
    location = {"url": merged["url"], "revision": merged["revision"]}
    promoted: Any = SimpleNamespace(location=location, name="daily", version=1)
    base = base_of(cycle.context, promoted)
    assert (base.repo, base.revision, base.version) == ("m/whole", COMMIT, 1)


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the hub's client to its own
async def test_a_model_with_its_tokenizer_goes_to_the_hub_once(hub: Hub) -> None:
    cycle = Played(tokenizer_id="org/words")
    made = {"artifact_id": "artifact-1", "digest": "sha256:1"}
    put = [await verifying._published(cycle.context, made) for _ in range(3)]
    assert put == ["hf://me/org__base-with-tokenizer"] * 3
    repo = hub.repos["me/org__base-with-tokenizer"]
    assert (len(repo.messages), cycle.fetched) == (1, 1), "it is there, and is not sent again"
    await verifying._published(cycle.context, {"artifact_id": "artifact-2", "digest": "sha256:2"})
    assert len(repo.messages) == 2
    assert repo.branches["main"]["model.safetensors"] == b"artifact-2"
    assert repo.private
