"""The real libraries, each in its child: what they keep is read back, and what is told twice is kept once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.fakes.wandb_api import wandb_api
from tests.integration.tracking.kept import mlflow_runs, trackio_runs, wandb_runs
from tunefleet.errors import InputError
from tunefleet.integrations.trackers import delivery
from tunefleet.integrations.trackers.contract import NotTracked, TrackedRun
from tunefleet.settings import TrackingSettings, load

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

RUN = TrackedRun(
    id="camp-0123456789ab-3",
    name="adapter_task-3",
    project="charts",
    group="daily",
    at=1_700_000_000.0,
    step=3,
    config={"merged_model_repo": "org/merged", "training_number": 3, "chunk_rows": 20},
    metrics={"test_loss": 1.5, "score": 0.25},
    summary={"stage": "promoted", "version": 2},
)
KEY = "0123456789abcdef0123456789abcdef01234567"


def post(name: str, run: TrackedRun, folder: Path) -> str:
    return asyncio.run(delivery.post(name, run, folder, load(TrackingSettings)))


def test_wandb_offline_keeps_the_run_once(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ENTITY", "team")
    first = post("wandb", RUN, alone)
    assert post("wandb", RUN, alone) == first
    (kept,) = wandb_runs(alone)
    assert Path(first).is_dir()
    about = (kept.run.run_id, kept.run.display_name, kept.run.project, kept.run.entity, kept.run.run_group)
    assert about == (RUN.id, RUN.name, RUN.project, "team", RUN.group)
    assert {key: value for key, value in kept.config.items() if not key.startswith("_")} == RUN.config
    (row,) = kept.rows
    assert {key: value for key, value in row.items() if not key.startswith("_")} == RUN.metrics
    assert row["_step"] == RUN.step
    assert {key: kept.summary[key] for key in RUN.summary} == RUN.summary
    assert kept.exited
    assert kept.run.host == "tunefleet"
    told = [place for place in (sys.executable, str(alone), sys.argv[0]) if place.encode() in kept.raw]
    assert not told, "nothing is told of this machine"
    assert not list(Path(first).rglob("requirements.txt"))


def test_wandb_online_is_told_of_the_run_under_its_id_and_once(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_ENTITY", "team")
    with wandb_api() as api:
        monkeypatch.setenv("WANDB_BASE_URL", api.url)
        where = post("wandb", RUN, alone)
        assert post("wandb", RUN, alone) == where
    assert where == f"{api.url}/team/{RUN.project}/runs/{RUN.id}"
    ((name, run),) = api.runs.items()
    about = (name, run.said["displayName"], run.said["project"], run.said["entity"], run.said["groupName"])
    assert about == (RUN.id, RUN.name, RUN.project, "team", RUN.group)
    assert {key: value for key, value in run.config.items() if not key.startswith("_")} == RUN.config
    (row,) = run.rows
    assert {key: value for key, value in row.items() if not key.startswith("_")} == RUN.metrics
    assert row["_step"] == RUN.step
    assert {key: run.summary[key] for key in RUN.summary} == RUN.summary
    places = [place.encode() for place in (sys.executable, str(alone), str(Path.cwd()), KEY)]
    assert not [place for place in places if any(place in told for told in api.told)], "nothing of this machine is told"
    assert not list(alone.rglob("*.wandb")), "what is told is not kept here"


def test_what_wandb_refuses_is_not_told(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_api() as api:
        api.refusal = 401
        monkeypatch.setenv("WANDB_BASE_URL", api.url)
        with pytest.raises(NotTracked, match="wandb did not accept the run") as refused:
            post("wandb", RUN, alone)
    assert KEY not in str(refused.value)


def test_wandb_offline_writes_anew_what_a_killed_child_has_left(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    where = Path(post("wandb", RUN, alone))
    (where / "tunefleet.whole").unlink()
    again = Path(post("wandb", RUN, alone))
    post("wandb", replace(RUN, id=f"{RUN.id}-1", name="other"), alone)
    assert [kept.run.run_id for kept in wandb_runs(alone)] == [RUN.id, f"{RUN.id}-1"]
    assert (again / "tunefleet.whole").exists()


def test_mlflow_keeps_the_run_once(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{alone}/runs.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    where = post("mlflow", RUN, alone)
    # As a child leaves it that was killed before its end: without a part of the metrics, and running.
    with sqlite3.connect(alone / "runs.db") as database:
        database.execute("DELETE FROM metrics WHERE key = 'score'")
        database.execute("DELETE FROM latest_metrics WHERE key = 'score'")
        database.execute("UPDATE runs SET status = 'RUNNING'")
    assert post("mlflow", RUN, alone) == where
    (run,) = mlflow_runs(uri)
    assert (run["name"], run["status"]) == (RUN.name, "FINISHED")
    assert run["params"] == {key: str(value) for key, value in RUN.config.items()}
    assert run["metrics"] == {key: [[value, RUN.step]] for key, value in RUN.metrics.items()}
    assert {key: run["tags"][key] for key in ("tunefleet.run", "tunefleet.group", "tunefleet.stage")} == {
        "tunefleet.run": RUN.id, "tunefleet.group": RUN.group, "tunefleet.stage": "promoted",
    }  # fmt: skip


def test_trackio_keeps_the_run_once(alone: Path) -> None:
    post("trackio", RUN, alone)
    post("trackio", RUN, alone)
    (run,) = trackio_runs(alone / "trackio")
    assert run["name"] == RUN.name
    assert {key: run["config"][key] for key in (*RUN.config, *RUN.summary)} == {**RUN.config, **RUN.summary}
    (row,) = run["rows"]
    assert {key: row[key] for key in (*RUN.metrics, "step")} == {**RUN.metrics, "step": RUN.step}


def test_what_trackio_only_warns_of_is_a_failure(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / "trackio").mkdir()
    monkeypatch.setenv("TRACKIO_DIR", str(alone / "trackio"))
    (alone / "trackio" / "charts.db").mkdir()
    with pytest.raises(NotTracked, match="trackio did not accept the run"):
        post("trackio", RUN, alone)


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("wandb", {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:{port}", "WANDB_INIT_TIMEOUT": "3"}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "http://me:secret-word@127.0.0.1:{port}",
                    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}),
    ],
)  # fmt: skip
def test_one_that_is_away_has_not_taken_it_and_no_secret_is_said(
    alone: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int], name: str, variables: dict[str, str]
) -> None:
    port = free_port()
    for key, value in variables.items():
        monkeypatch.setenv(key, value.format(port=port))
    monkeypatch.setenv("TUNEFLEET_TRACKING_TIMEOUT_S", "20")
    with pytest.raises(NotTracked) as caught:
        post(name, RUN, alone)
    assert KEY not in str(caught.value)
    assert "secret-word" not in str(caught.value)


def test_one_that_hangs_is_ended(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_TRACKING_TIMEOUT_S", "3")
    children: list[Any] = []
    started = asyncio.create_subprocess_exec

    async def watched(*given: Any, **more: Any) -> Any:
        child = await started(*given, **more)
        children.append(child)
        os.kill(child.pid, signal.SIGSTOP)
        return child

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    with pytest.raises(NotTracked, match="more than 3 s"):
        post("trackio", RUN, alone)
    assert [child.returncode for child in children] == [-signal.SIGKILL]


def test_one_that_hangs_ends_without_its_server_too(alone: Path) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    run = {"tracker": "mlflow", "folder": str(alone), "run": asdict(RUN)}
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{silent.getsockname()[1]}",
        "TUNEFLEET_TRACKING_TIMEOUT_S": "2",
    }
    with (
        silent,
        subprocess.Popen(
            [sys.executable, "-m", "tunefleet.integrations.trackers.child"], stdin=subprocess.PIPE, env=environment
        ) as child,
    ):
        child.communicate(orjson.dumps(run), timeout=60)
    assert child.returncode == -signal.SIGALRM


def test_a_child_sees_its_own_keys_only(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / ".env").write_text(f"WANDB_API_KEY={KEY}\nGRADIENTS_API_KEY=gradients-key\n")
    monkeypatch.setenv("HF_TOKEN", "hf_token_of_somebody")
    monkeypatch.setenv("S3_COMPATIBLE_SECRET_KEY", "s3-secret")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "mlflow-token")
    own = delivery.variables_for("wandb", ("WANDB_",))
    seen = delivery.environment(own)
    assert seen["WANDB_API_KEY"] == KEY
    assert not {"HF_TOKEN", "S3_COMPATIBLE_SECRET_KEY", "MLFLOW_TRACKING_TOKEN", "GRADIENTS_API_KEY"} & set(seen)
    assert delivery.hidden(f"bad key {KEY} of team", {**own, "WANDB_ENTITY": "team"}) == "bad key *** of team"


@pytest.mark.parametrize(
    ("name", "says"),
    [("wandb", "WANDB_API_KEY is not set"), ("mlflow", "MLFLOW_TRACKING_URI is not set"), ("other", "Unknown tracker")],
)
def test_one_that_lacks_something_is_not_begun(alone: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        post(name, RUN, alone)
