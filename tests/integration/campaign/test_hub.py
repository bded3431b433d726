"""What campaigns read from the Hub and put there, over real HTTP: whole models that were made, a base's tokenizer."""

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
from tunefleet.campaign import base_model_check
from tunefleet.campaign.contract import Candidate, Later, Progress
from tunefleet.campaign.steps.evaluate import of_candidate
from tunefleet.campaign.steps.merge import MergeStep
from tunefleet.campaign.steps.publish import PublishStep
from tunefleet.campaign.steps.submit import base_of, chosen_base
from tunefleet.campaign.steps.wait import WaitStep
from tunefleet.integrations.publishing.targets import PublishOptions, target
from tunefleet.lifecycle.cycle import StepName
from tunefleet.settings import CampaignSettings, PublishSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

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
        monkeypatch.setattr(Played, "folder", tmp_path / "steps", raising=False)
        served.hub.repos = {"m/lora": Repo({"main": dict(ADAPTER)}), "m/whole": Repo({"main": dict(WHOLE)})}
        yield served.hub


class Played:
    """A cycle behind `submit`, with what a provider has made."""

    folder: Path
    """Where its steps keep files."""

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
        repository = SimpleNamespace(spend=self._nothing, report=self._report, published=self._none, folder=self.folder)
        provider = SimpleNamespace(name="gradients", look=self._look, fetches_from_store=False)
        client = SimpleNamespace(artifacts=SimpleNamespace(fetch=self._fetch))
        return SimpleNamespace(
            spec=self.spec, settings=self.settings, outcome=self.outcomes.__getitem__, log=self._log, state=state,
            repository=repository, provider=provider, client=client, clock=SimpleNamespace(wall=lambda: 50.0),
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
    cycle = Played("m/lora", "m/whole", "m/gone", "not a valid Hub id")
    made = (await cycle.do(WaitStep()))["candidates"]
    assert [(each["form"], each["revision"]) for each in made] == [
        ("adapter", COMMIT), ("model", COMMIT), ("adapter", None), ("adapter", None),
    ]  # fmt: skip
    blocks, _ = of_candidate(cycle.spec, chosen_base(cycle.context), Candidate(**made[1]))
    assert blocks == {"model": {"source": {"identifier": "m/whole", "revision": COMMIT}}}
    blocks, _ = of_candidate(cycle.spec, chosen_base(cycle.context), Candidate(**made[0]))
    assert blocks["model"]["adapters"] == [{"path": "m/lora", "revision": COMMIT}], "what is measured is what is merged"


async def test_what_was_made_waits_for_a_hub_that_is_away(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    there = hub.url
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    cycle = Played("m/whole")
    waits = await cycle.do(WaitStep())
    assert isinstance(waits, Later)
    assert waits.until == 55.0
    assert "the trained models cannot be inspected: Cannot reach the Hub for hf://m/whole" in waits.why
    monkeypatch.setenv("HF_ENDPOINT", there)
    assert (await cycle.do(WaitStep()))["candidates"][0]["form"] == "model"


async def test_a_whole_model_is_taken_as_it_is_and_a_copy_is_published(hub: Hub, tmp_path: Path) -> None:
    to = tmp_path / "published"
    cycle = Played("m/whole", publish={"to": str(to)}, merge={"on": "runpod"})
    await cycle.do(WaitStep())
    await cycle.choose(0)
    merged = await cycle.do(MergeStep())
    assert merged["url"] == "hf://m/whole"
    assert "m/whole is a full model and is used without a merge" in cycle.lines
    assert (await cycle.do(PublishStep()))["url"] == str(to)
    assert {path.name for path in to.rglob("*")} == {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert (to / "model.safetensors").read_bytes() == WHOLE["model.safetensors"]
    card = (to / "README.md").read_text()
    assert f"`hf://m/whole` as it is, commit `{COMMIT}`" in card
    assert "downloading" in cycle.told
    assert "publishing" in cycle.told


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the Hub's client to its own
async def test_a_whole_model_is_copied_into_our_account_also_where_runpod_merges(hub: Hub) -> None:
    cycle = Played("m/whole", merge={"on": "runpod"})
    await cycle.do(WaitStep())
    await cycle.choose(0)
    await cycle.do(MergeStep())
    assert (await cycle.do(PublishStep()))["url"].startswith("hf://me/")


async def test_what_runpod_has_merged_goes_where_the_campaign_says(hub: Hub, tmp_path: Path) -> None:
    to = tmp_path / "published"
    cycle = Played("m/lora", publish={"to": str(to)}, merge={"on": "runpod"})
    await cycle.do(WaitStep())
    await cycle.choose(0)
    hub.repos["me/merged-lora"] = Repo({"main": dict(WHOLE)})
    cycle.outcomes[StepName.MERGE] = {"url": "hf://me/merged-lora", "form": "model", "job": "job-1"}
    assert (await cycle.do(PublishStep()))["url"] == str(to)
    assert (to / "model.safetensors").read_bytes() == WHOLE["model.safetensors"]
    assert "`hf://me/merged-lora`, merged there" in (to / "README.md").read_text()
    plain = Played("m/lora", merge={"on": "runpod"})
    plain.outcomes |= cycle.outcomes
    assert await plain.do(PublishStep()) == {"url": "hf://me/merged-lora"}


async def test_what_could_not_be_passed_on_is_no_candidate(hub: Hub) -> None:
    del hub.repos["m/whole"].branches["main"]["model.safetensors"]
    cycle = Played("m/whole", "m/lora")
    found = (await cycle.do(WaitStep()))["candidates"]
    assert "m/whole has no safetensors weights" in found[0]["fault"]
    assert found[1]["fault"] is None


async def test_a_whole_model_that_is_published_nowhere_stays_the_one_that_was_measured(hub: Hub) -> None:
    cycle = Played("m/whole", publish={"to": "none"})
    await cycle.do(WaitStep())
    await cycle.choose(0)
    merged = await cycle.do(MergeStep())
    assert await cycle.do(PublishStep()) == {"url": "hf://m/whole"}
    location = {"url": merged["url"], "revision": merged["revision"]}
    promoted: Any = SimpleNamespace(location=location, lineage={"merge": merged}, name="daily", version=1)
    base = base_of(cycle.context, promoted)
    assert (base.repo, base.revision, base.version) == ("m/whole", COMMIT, 1)


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the Hub's client to its own
async def test_a_model_with_its_tokenizer_goes_to_the_hub_once(hub: Hub) -> None:
    cycle = Played(tokenizer_id="org/words")
    made = {"artifact_id": "artifact-1", "digest": "sha256:1"}
    put = [await base_model_check._published(cycle.context, made) for _ in range(3)]
    assert put == ["hf://me/org__base-with-tokenizer"] * 3
    repo = hub.repos["me/org__base-with-tokenizer"]
    assert (len(repo.messages), cycle.fetched) == (1, 1), "it is there, and is not sent again"
    await base_model_check._published(cycle.context, {"artifact_id": "artifact-2", "digest": "sha256:2"})
    assert len(repo.messages) == 2
    assert repo.branches["main"]["model.safetensors"] == b"artifact-2"
    assert repo.private


def model_in(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text(folder.name)
    return folder


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the Hub's client to its own
@pytest.mark.parametrize("on_hub", [False, True])
def test_a_model_that_is_published_over_another_leaves_none_of_its_weights(
    hub: Hub, tmp_path: Path, on_hub: bool
) -> None:
    to = "hf://me/over" if on_hub else str(tmp_path / "there")
    keys = PublishSettings(hf_token=SecretStr("writer"), hf_endpoint=hub.url)
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")
    target(to, PublishOptions(force=True), keys).put(model_in(tmp_path / "old", *shards, "config.json"), lambda _: None)
    if not on_hub:
        (tmp_path / "there" / "notes.txt").write_text("mine")
    target(to, PublishOptions(force=True), keys).put(model_in(tmp_path / "new", "model.safetensors"), lambda _: None)
    if on_hub:
        files = hub.repos["me/over"].branches["main"]
        left = {name: text.decode() for name, text in files.items() if name != ".gitattributes"}
        assert left == {"config.json": "old", "model.safetensors": "new"}
        assert len(hub.repos["me/over"].messages) == 2, "in the same commit"
    else:
        left = {path.name: path.read_text() for path in (tmp_path / "there").iterdir()}
        assert left == {"config.json": "old", "model.safetensors": "new", "notes.txt": "mine"}
    assert not list(tmp_path.glob(".*.part"))
