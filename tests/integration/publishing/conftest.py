"""Push tasks as processes of their own, as a worker runs them, with a real client of the Hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.hub import Hub, serving
from tunefleet.executors.merge import PushExecutor
from tunefleet.runtime import Supervisor
from tunefleet.runtime.exit_classification import JobEnd
from tunefleet.settings import inherited_environment
from tunefleet.testing.job_runner import Runner

TOKEN = "hf_writerwriterwriter"
RESULT = {"task_id": "task-1", "result": {"model_name": "org/base", "losses": {"train_last": 0.25}}}


@dataclass(frozen=True)
class Pushed:
    """An ended push, and everything that it has written."""

    end: JobEnd
    runner: Runner

    @property
    def result(self) -> dict[str, Any]:
        assert self.end.outcome == "completed", f"{self.end.reason}: {self.end.error}"
        return PushExecutor().result(self.runner.folder)

    def records(self, kind: str) -> list[dict[str, Any]]:
        lines = [line for file in sorted(self.runner.folder.journal_dir.glob("*.jsonl"))
                 for line in file.read_text().splitlines()]  # fmt: skip
        return [record for record in map(json.loads, lines) if record["type"] == kind]

    def written(self) -> bytes:
        """Return the content of all files of the job folder."""
        files = [path for path in self.runner.folder.root.rglob("*") if path.is_file()]
        return b"".join(path.read_bytes() for path in files)


Push = Callable[..., Pushed]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(TOKEN) as made:
        yield made


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """The files of a trained adapter, with the card that PEFT writes."""
    folder = tmp_path / "final_lora"
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "base_model_name_or_path": "/models/base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 4096)
    (folder / "README.md").write_text("---\n---\n[More Information Needed]")
    return folder


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(PushExecutor(), tmp_path, timeout_s=100)


@pytest.fixture
def job(hub: Hub, runner: Runner, tmp_path: Path) -> Callable[[Mapping[str, str]], Runner]:
    """Set the environment of the worker's jobs; without a token they have none."""

    def with_environment(more: Mapping[str, str]) -> Runner:
        # The Hub's fast way to send files speaks to a service of its own, which the double lacks.
        own = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_TOKEN": "",
               "HF_TOKEN_PATH": str(tmp_path / "none"), "HF_HOME": str(tmp_path / "hf"), **more}  # fmt: skip
        # As a worker has them: in its own environment, and in no file.
        environment = {**inherited_environment(), **own}
        runner._jobs = Supervisor(tmp_path, endpoints_dir=tmp_path / ".jobs", warm=False, base_env=environment)
        return runner

    return with_environment


@pytest.fixture
def push(job: Callable[[Mapping[str, str]], Runner], adapter: Path, tmp_path: Path) -> Push:
    """Publish the adapter; keys of the spec's `push` block, and the worker's environment."""

    def go(
        to: str, environment: Mapping[str, str] | None = None, *, source: Path | None = None, **options: Any
    ) -> Pushed:
        runner = job({"HF_TOKEN": TOKEN} if environment is None else environment)
        return Pushed(runner.end(runner.launch(spec_of(to, **options), inputs=inputs(source or adapter))), runner)

    return go


def spec_of(to: str, **options: Any) -> dict[str, Any]:
    return {"checkpoint": {"load": {"taskId": "task-1"}}, "push": {"to": to, **options}}


def inputs(source: Path) -> dict[str, str]:
    """Return what a worker fetches for the task: the files, and the result of the run that made them."""
    result = source.parent / "responses.json"
    result.write_text(json.dumps(RESULT))
    return {"checkpoint.load": str(source), "checkpoint.result": str(result)}
