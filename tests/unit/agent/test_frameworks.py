"""`framework` of a config: trained with the trainer that it names, in that trainer's environment, or refused."""

from __future__ import annotations

import platform
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.workloads.external_trainers.test_plans import request
from tunefleet.agent import poller
from tunefleet.agent.agent import Agent
from tunefleet.agent.jobs.job import AgentRecord
from tunefleet.agent.translate import Defaults, Translation, translate
from tunefleet.errors import InputError, SpecError
from tunefleet.executors.sft import OTHERS, LoraSftExecutor
from tunefleet.runtime import envs
from tunefleet.runtime.envs import registry
from tunefleet.runtime.envs.registry import digest
from tunefleet.runtime.monitor.system import SystemReader
from tunefleet.schemas.training_protocol.training import Heartbeat, HeartbeatReply
from tunefleet.settings import AgentSettings
from tunefleet.trainer_control.files import write_json
from tunefleet.workloads.external_trainers import trainers

OTHER_TRAINERS = ("unsloth", "axolotl", "llamafactory")


@pytest.fixture
def envs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the environments of a machine with a GPU; there are none yet."""
    monkeypatch.setenv("TUNEFLEET_ENVS_DIR", str(tmp_path))
    monkeypatch.setattr(registry, "machine", lambda: "gpu")
    return tmp_path


def install(folder: Path, name: str) -> None:
    """Leave what `tunefleet env create` leaves, without the packages."""
    lock = envs.family(name).lock_file("gpu")
    assert lock is not None
    made = {"family": name, "machine": "gpu", "lock": digest(lock), "python": platform.python_version(), "made_at": 1.0}
    (folder / name / "bin").mkdir(parents=True)
    write_json(folder / name / registry.STAMP, made | {"base": sys.prefix})
    (folder / name / "bin/python").touch()


def translated(framework: Any, key: str = "framework") -> Translation:
    block, _, name = key.rpartition(".")
    config: dict[str, Any] = {
        "model": {"name": "org/model"},
        "tokenizer": {"name": "org/model"},
        "training": {"use_lora": True},
        "data": {},
    }
    place = config[block] if block else config
    place[name] = framework
    return translate(config, {"path": "rows.jsonl"}, Defaults(gpu=True, bf16=True))


def admit(meant: Translation) -> None:
    """Ask the agent of such a machine whether it takes the job."""
    agent = SimpleNamespace(gpus=SimpleNamespace(limit_bytes=lambda: None), settings=AgentSettings())
    record = AgentRecord(job_id="j", name="n", kind=meant.kind, spec=meant.spec, order=0.0)
    Agent.admit(agent, record)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["framework", "training.framework", "trainer"])
@pytest.mark.parametrize("name", OTHER_TRAINERS)
def test_a_framework_trains_where_its_environment_is_ready(name: str, key: str, envs_folder: Path) -> None:
    install(envs_folder, name)
    meant = translated(name.upper() if key == "trainer" else name, key)
    assert meant.spec["trainer"] == name
    admit(meant)
    assert LoraSftExecutor().program_of(meant.spec) == OTHERS
    assert trainers.find_trainer(name)(request(name)).environment == name


@pytest.mark.parametrize("name", OTHER_TRAINERS)
def test_a_framework_without_its_environment_is_refused_with_the_command_that_creates_it(
    name: str, envs_folder: Path
) -> None:
    with pytest.raises(InputError) as caught:
        admit(translated(name))
    assert f"'{name}' is missing: tunefleet env create {name}." in str(caught.value)
    assert "trains with trl" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["unsloth", "axolotl"])
def test_a_framework_that_needs_a_gpu_is_refused_where_there_is_none(
    name: str, envs_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "machine", lambda: "cpu")
    with pytest.raises(InputError, match=f"'{name}' needs a GPU, but this machine has none"):
        admit(translated(name))


@pytest.mark.parametrize("name", [None, "trl", "transformers", "HuggingFace", "hf", "pytorch"])
def test_a_name_of_the_agents_own_way_trains_without_an_environment(name: str | None, envs_folder: Path) -> None:
    meant = translated(name)
    assert "trainer" not in meant.spec
    assert LoraSftExecutor().program_of(meant.spec) == "tunefleet.workloads.training:main"
    admit(meant)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("unslot", "unsloth"),
        ("axolot", "axolotl"),
        ("LLaMA-Factory", "llamafactory"),
        ("transfomers", "transformers"),
        ("megatron", None),
        (7, None),
    ],
)
def test_an_unknown_framework_is_refused_with_the_nearest(name: Any, nearest: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        translated(name)
    (fault,) = caught.value.faults
    assert (fault.path, fault.message) == ("config.framework", f"{name!r} is not a trainer")
    meant = f"did you mean {nearest}? " if nearest else ""
    assert fault.hint == f"{meant}use one of trl, axolotl, llamafactory, unsloth, or remove it"


class Backend:
    """A double of a backend that is sent heartbeats; before the third, Axolotl is installed."""

    def __init__(self, folder: Path, agent: SimpleNamespace) -> None:
        self.folder, self.agent, self.beats = folder, agent, list[Heartbeat]()
        self.due = threading.Event()

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        self.beats.append(beat)
        if len(self.beats) == 2:
            install(self.folder, "axolotl")
        if len(self.beats) == 4:
            self.agent.stopping.set()
        self.due.set()
        return HeartbeatReply(lease_s=90)


def test_the_backend_learns_of_an_environment_with_the_next_heartbeat(
    envs_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_table = SimpleNamespace(
        jobs=list, free=lambda: 0, context=SimpleNamespace(registry=SimpleNamespace(offers=tuple))
    )
    agent = SimpleNamespace(
        settings=AgentSettings(), job_table=job_table, stopping=threading.Event(), gpus=SimpleNamespace(devices=()),
        system=SystemReader(envs_folder),
    )  # fmt: skip
    monkeypatch.setattr(poller, "load", lambda agent: {})
    backend = Backend(envs_folder, agent)
    executor = SimpleNamespace(outcomes=tuple, stored=lambda *_: None, take=lambda _: None, run=lambda _: None)
    polling = poller.Poller(agent, lambda: backend, executor, backend.due)  # type: ignore[arg-type, return-value]
    polling._beat_loop()
    told = [beat.capabilities and beat.capabilities.environments for beat in backend.beats]
    assert told == [(), None, ("axolotl",), None]
