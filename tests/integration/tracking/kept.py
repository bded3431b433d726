"""What trackers have kept, read back by their own clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.tracking.wandb_file import Kept, read


def wandb_runs(folder: Path) -> list[Kept]:
    return [read(path) for path in sorted((folder / "wandb" / "wandb").glob("offline-run-*/*.wandb"))]


def mlflow_runs(uri: str, project: str = "charts") -> list[Any]:
    """What MLflow's client finds, as it says it, in a process of its own."""
    program = (
        "import json, sys\nfrom mlflow.tracking import MlflowClient\nclient = MlflowClient(sys.argv[1])\n"
        "experiment = client.get_experiment_by_name(sys.argv[2])\n"
        "runs = client.search_runs([experiment.experiment_id]) if experiment else []\n"
        "rows = lambda run: {key: [[row.value, row.step] for row in client.get_metric_history(run.info.run_id, key)]"
        " for key in run.data.metrics}\n"
        "print(json.dumps([{'name': run.info.run_name, 'status': run.info.status, 'params': run.data.params,"
        " 'tags': run.data.tags, 'metrics': rows(run)} for run in runs]))"
    )
    done = subprocess.run([sys.executable, "-c", program, uri, project], check=True, capture_output=True, text=True)
    found: list[Any] = json.loads(done.stdout)
    return found


def trackio_runs(folder: Path, project: str = "charts") -> list[Any]:
    """What Trackio's own interface finds in a folder."""
    program = (
        "import json, sys\nfrom trackio.api import Api\nfrom trackio.sqlite_storage import SQLiteStorage\n"
        "print(json.dumps([{'name': run.name, 'config': run.config,"
        " 'rows': SQLiteStorage.get_logs(sys.argv[1], run.name, run_id=run.id)}"
        " for run in Api().runs(sys.argv[1])], default=str))"
    )
    environment = {**os.environ, "TRACKIO_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program, project], check=True, capture_output=True, text=True, env=environment
    )
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found
