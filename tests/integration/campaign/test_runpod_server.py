"""Our client against our handler, which RunPod's own SDK serves in a process of its own; real merges, and a hub."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.conftest import CI
from tests.fakes.hub import Hub, Repo, serving
from tests.fakes.runpod import ENDPOINT, KEY, Jobs, runpod
from tests.integration.merge.conftest import BUILTIN, lora
from tunefleet.campaign.contract import StepFailed
from tunefleet.campaign.runpod import Merged, Merging, RunPod, Waiting
from tunefleet.client.external.third_party_api import Patience
from tunefleet.settings import CampaignSettings
from tunefleet.workloads import assets


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global load, torch
    pytest.importorskip("peft")

    import torch
    from safetensors.torch import load


pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TOKEN = "hf_writer_0123456789"
PYTHON = Path(__file__).parents[3] / ".venv-runpod" / "bin" / "python"
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Place:
    """What a merge meets: RunPod, the Hub, and the folder of the container."""

    jobs: Jobs
    hub: Hub
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def put(self, name: str, folder: Path) -> None:
        repo = self.hub.repos.setdefault(name, Repo())
        repo.branches["main"] |= {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    async def merged(
        self, lora: str, base: str, *, revision: str | None = None, again: bool = False, **more: Any
    ) -> Merged:
        given: dict[str, Any] = {
            "runpod_key": SecretStr(KEY), "runpod_endpoint": ENDPOINT, "runpod_url": self.jobs.url,
            "hf_token": SecretStr(TOKEN), "hf_username": "tester",
        }  # fmt: skip
        endpoint = RunPod(CampaignSettings(**{**given, **more}), patience=Patience(2, 0.01, 0.01))
        deadline = time.monotonic() + PATIENCE_S
        known = Merging(lora=lora, base=base, revision=revision)

        async def keep(merging: Merging) -> None:
            nonlocal known
            known = merging

        try:
            while isinstance(found := await endpoint.merge(known, keep, Paid(), again=again), Waiting):
                assert time.monotonic() < deadline, self.log
                await asyncio.sleep(0.2)
        finally:
            await endpoint.close()
        return found


class Paid:
    """There is room for every job."""

    async def check(self, seconds: float) -> None:
        return

    async def pay(self, job: str, seconds: float) -> None:
        assert 0 <= seconds <= 10_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Place]:
    if not PYTHON.exists():
        assert not CI, "scripts/environments.sh makes it"
        pytest.skip("RunPod's SDK is missing: scripts/environments.sh installs it beside .venv")
    folder, port = tmp_path_factory.mktemp("runpod"), free_port()
    (folder / "tmp").mkdir()
    with serving(TOKEN) as hub, runpod() as jobs, (folder / "server.log").open("wb") as log:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TUNEFLEET_"))}
        environment |= {
            "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "TMPDIR": str(folder / "tmp"),
            "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1", "RUNPOD_API_KEY": KEY,
        }  # fmt: skip
        command = [str(PYTHON), "-m", "tunefleet.workloads.runpod", "--rp_serve_api", "--rp_api_port", str(port)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        jobs.behind = f"http://localhost:{port}"
        made = Place(jobs, hub, folder)
        try:
            _await(process, jobs.behind, made)
            yield made
        finally:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], url: str, place: Place) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, place.log
        assert time.monotonic() < deadline, place.log
        try:
            if httpx.get(f"{url}/openapi.json", trust_env=False, timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)


@pytest.mark.proof
async def test_three_merges_at_once_and_none_is_done_twice(place: Place, tmp_path: Path) -> None:
    base = assets.locate(BUILTIN, "model")
    place.put("org/base", base)
    for number, owner in enumerate(("one", "two", "three")):
        adapter = lora(BUILTIN, tmp_path / owner, seed=number, target_modules=["q_proj"])
        # Two of them have one name, in different accounts.
        place.put(f"{owner}/{'tuned' if number < 2 else 'other'}", adapter)
    ids = ["one/tuned", "two/tuned", "three/other"]
    first = await place.merged(ids[0], "org/base")
    others = await asyncio.gather(*(place.merged(ids[number], "org/base") for number in (1, 2)))
    found = [first, *others]
    assert first.repo == "tester/merged-tuned"
    assert found[1].repo.startswith("tester/merged-tuned-"), "what another merge has left is not written over"
    assert found[2].repo == "tester/merged-other"
    assert [each.verified for each in found] == [True, True, True]
    before = load((base / "model.safetensors").read_bytes())
    for merged, owner in zip(found, ("one", "two", "three"), strict=True):
        repo = place.hub.repos[merged.repo]
        files = repo.branches["main"]
        assert repo.private
        after = load(files["model.safetensors"])
        assert {each.dtype for each in after.values()} == {torch.bfloat16}
        factors = load((tmp_path / owner / "adapter_model.safetensors").read_bytes())
        name = "model.layers.0.self_attn.q_proj"
        a, b = (factors[f"base_model.model.{name}.lora_{side}.weight"].float() for side in "AB")
        exact = torch.addmm(before[f"{name}.weight"].float(), b, a, alpha=2.0).bfloat16()
        assert torch.equal(after[f"{name}.weight"], exact)
        assert files["tokenizer.json"] == (base / "tokenizer.json").read_bytes()
        assert b"org/base" in files["README.md"]
    # The id of a job was lost: it is sent again, and finds what the first one has made.
    commits = len(place.hub.repos[first.repo].messages)
    again = await place.merged(ids[0], "org/base")
    assert (again.repo, again.verified) == (first.repo, None)
    assert len(place.hub.repos[first.repo].messages) == commits
    # Somebody asks for it once more: it is merged, into a place of its own.
    once_more = await place.merged(ids[0], "org/base", again=True)
    assert once_more.repo.startswith("tester/merged-tuned-")
    assert once_more.verified
    weights = [place.hub.repos[each.repo].branches["main"]["model.safetensors"] for each in (first, once_more)]
    assert weights[0] == weights[1]
    assert not list((place.folder / "tmp").iterdir()), "nothing of a merge stays in the container"


@pytest.mark.proof
async def test_the_commit_that_was_measured_is_merged_whatever_is_there_by_now(place: Place, tmp_path: Path) -> None:
    base, commit = assets.locate(BUILTIN, "model"), "c" * 40
    place.put("org/base", base)
    for number, branch in enumerate((commit, "main")):
        adapter = lora(BUILTIN, tmp_path / branch, seed=10 + number, target_modules=["q_proj"])
        place.put("org/moved", adapter)
        place.hub.repos["org/moved"].branches[branch] = dict(place.hub.repos["org/moved"].branches["main"])
    merged = await place.merged("org/moved", "org/base", revision=commit)
    name = "model.layers.0.self_attn.q_proj"
    factors = load((tmp_path / commit / "adapter_model.safetensors").read_bytes())
    a, b = (factors[f"base_model.model.{name}.lora_{side}.weight"].float() for side in "AB")
    before = load((base / "model.safetensors").read_bytes())[f"{name}.weight"].float()
    after = load(place.hub.repos[merged.repo].branches["main"]["model.safetensors"])[f"{name}.weight"]
    assert torch.equal(after, torch.addmm(before, b, a, alpha=2.0).bfloat16())
    assert commit.encode() in place.hub.repos[merged.repo].branches["main"]["README.md"]


async def test_what_fails_has_its_sentence_and_no_token_is_told(place: Place, tmp_path: Path) -> None:
    place.put("org/base", assets.locate(BUILTIN, "model"))
    place.put("org/fitting", lora(BUILTIN, tmp_path / "fitting", target_modules=["q_proj"]))
    place.hub.repos["org/nothing"] = Repo()
    place.hub.repos["org/hidden"] = Repo(private=True)
    with pytest.raises(StepFailed, match=r"org/none not found on the Hub, or not readable with this token.*HF_TOKEN"):
        await place.merged("org/fitting", "org/none")
    with pytest.raises(StepFailed, match=r"org/nothing contains neither an adapter"):
        await place.merged("org/nothing", "org/base")
    with pytest.raises(StepFailed, match=r"org/hidden not found on the Hub, or not readable with this token.*HF_TOKEN"):
        await place.merged("org/hidden", "org/base", hf_token=SecretStr("hf_of_somebody_else"))
    with pytest.raises(StepFailed, match="lacks hf_token"):
        await place.merged("org/fitting", "org/base", runpod_send_token=False)
    place.hub.repos["org/base"].branches["main"]["modeling_own.py"] = b"raise SystemExit"
    whole = await place.merged("org/base", "org/base")
    assert whole.repo == "tester/merged-base"
    assert "modeling_own.py" not in place.hub.repos[whole.repo].branches["main"], "nobody has asked for its code"
    assert "model.safetensors" in place.hub.repos[whole.repo].branches["main"], "a whole model is put there as it is"
    for secret in (TOKEN, "hf_of_somebody_else", KEY):
        assert secret not in place.log
    assert not list((place.folder / "tmp").iterdir())
