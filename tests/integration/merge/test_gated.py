"""Gated and private models, against a double of the Hub that answers as the Hub does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.hub import Hub, Repo
from tests.integration.merge.conftest import Merge, llama, lora
from tests.integration.merge.hubs import Served
from tunefleet.errors import DataError, ModelError
from tunefleet.runtime.environment import job_environment
from tunefleet.settings import WorkerSettings, inherited_environment, load
from tunefleet.spec import InferenceTaskSpec, load_task_spec
from tunefleet.workloads.common import hub_files


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global engine_model
    pytest.importorskip("huggingface_hub")

    from tunefleet.workloads.inference.engines import engine_model


pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def hub(served: Served) -> Hub:
    served.hub.repos["meta/gated"] = Repo(gated=True)
    served.hub.repos["meta/secret"] = Repo(private=True)
    served.hub.readers.add("reader")
    return served.hub


def test_a_gated_model_names_its_licence_page_and_the_variable(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "https://huggingface.co/meta/gated"
    with pytest.raises(ModelError, match=f"is gated.*license at {page} and set HF_TOKEN on the worker"):
        hub_files.resolve("meta/gated", "model")
    monkeypatch.setenv("HF_TOKEN", "of-somebody-who-has-not-accepted")
    with pytest.raises(ModelError, match=f"license at {page} with the account of the worker's HF_TOKEN"):
        hub_files.resolve("meta/gated", "model")
    monkeypatch.setenv("HF_TOKEN", "reader")
    assert hub_files.resolve("meta/gated", "model").path == "meta/gated"
    with pytest.raises(ModelError, match=r"or is private.*HF_TOKEN"):
        hub_files.resolve("meta/secret", "model")
    with pytest.raises(DataError, match="Dataset 'meta/none' does not exist"):
        hub_files.resolve("meta/none", "dataset")


def test_the_token_of_a_worker_reaches_its_jobs_even_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("HF_TOKEN=of-the-worker\n")
    monkeypatch.setenv("TUNEFLEET_LLAMA_CPP", "llama.cpp")  # it is run, so that no `.env` names it
    settings = load(WorkerSettings)
    seen = job_environment({**inherited_environment(), **settings.handed_on}, {})
    assert (seen["HF_TOKEN"], seen["TUNEFLEET_LLAMA_CPP"]) == ("of-the-worker", str(tmp_path / "llama.cpp"))
    assert "of-the-worker" not in repr(settings)


def test_a_merge_loads_a_gated_base_with_the_token_and_refuses_it_without(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, merge: Merge, tmp_path: Path
) -> None:
    base = llama(tmp_path / "base")
    adapter = lora(base, tmp_path / "adapter")
    hub.repos["meta/gated"].branches["main"] |= {path.name: path.read_bytes() for path in base.iterdir()}
    refused = merge("meta/gated", adapter)
    assert refused.code == 2
    assert "https://huggingface.co/meta/gated" in (refused.status.error or "")
    monkeypatch.setenv("HF_TOKEN", "reader")
    result = merge("meta/gated", adapter).result
    assert result["verification"]["relative_error"] < 1e-4
    assert result["parents"]["base"]["identifier"] == "meta/gated"


def test_an_adapter_of_the_hub_is_fetched_by_a_merge_and_by_what_answers(
    hub: Hub, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = llama(tmp_path / "base")
    adapter = lora(base, tmp_path / "adapter")
    hub.repos["org/adapter"] = Repo()
    hub.repos["org/adapter"].branches["main"] |= {path.name: path.read_bytes() for path in adapter.iterdir()}
    monkeypatch.chdir(tmp_path)
    result = merge(base, {"path": "org/adapter"}, inputs={"model.adapters.0.path": None}).result
    assert result["parents"]["adapters"][0]["path"] == "org/adapter"
    assert result["verification"]["adapter_effect"] > 0.05
    model = {"source": {"identifier": str(base)}, "adapters": [{"path": "org/adapter"}]}
    spec = load_task_spec({"taskType": "inference", "model": model, "data": {"type": "list", "items": ["x"]}})
    assert isinstance(spec, InferenceTaskSpec)
    (found,) = engine_model(spec, {}, tmp_path / "work", "transformers").adapters
    assert (Path(found.path) / "adapter_config.json").read_bytes() == (adapter / "adapter_config.json").read_bytes()
    refused = merge(base, {"path": "org/none"}, inputs={"model.adapters.0.path": None})
    assert refused.code == 2
    assert "Model 'org/none' does not exist on the Hub" in (refused.status.error or "")


def test_a_commit_of_an_adapter_is_taken_whatever_is_there_by_now(
    hub: Hub, merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, commit = llama(tmp_path / "base"), "a" * 40
    hub.repos["org/adapter"] = Repo()
    for number, branch in enumerate((commit, "main")):
        adapter = lora(base, tmp_path / branch, seed=10 + number)
        hub.repos["org/adapter"].branches[branch] = {path.name: path.read_bytes() for path in adapter.iterdir()}
    monkeypatch.chdir(tmp_path)
    named = {"path": "org/adapter", "revision": commit}
    pinned = merge(base, named, inputs={"model.adapters.0.path": None}).product
    other = merge(base, {"path": "org/adapter"}, inputs={"model.adapters.0.path": None}).product
    local = merge(base, tmp_path / commit).product
    weights = [(each / "model.safetensors").read_bytes() for each in (pinned, local, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    model = {"source": {"identifier": str(base)}, "adapters": [named]}
    spec = load_task_spec({"taskType": "inference", "model": model, "data": {"type": "list", "items": ["x"]}})
    assert isinstance(spec, InferenceTaskSpec)
    (found,) = engine_model(spec, {}, tmp_path / "work", "transformers").adapters
    said = (Path(found.path) / "adapter_model.safetensors").read_bytes()
    assert said == (tmp_path / commit / "adapter_model.safetensors").read_bytes()
