"""MLflow: an experiment a project, in it a run a cycle, found again by a tag of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.integrations.trackers.contract import OpenRun, Plain, TrackedRun
from tunefleet.settings import TrackingSettings

ID_TAG: Final = "tunefleet.run"
_MAX_PARAM: Final = 6000
"""Characters of a value that MLflow takes."""


class _Run:
    """An open run; what a killed child has told of it already is not told again."""

    def __init__(self, client: Any, found: Any, run: TrackedRun, where: str) -> None:
        self._client, self._found, self._run, self._where = client, found, run, where
        self._id = found.info.run_id
        self._at_ms = round(run.at * 1000)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric, Param  # noqa: PLC0415 -- takes seconds, and only the child needs it

        known = self._found.data
        rows = [Metric(key, value, self._at_ms, step) for key, value in metrics.items() if key not in known.metrics]
        params = [
            Param(key, str(value)[:_MAX_PARAM]) for key, value in self._run.config.items() if key not in known.params
        ]
        self._client.log_batch(self._id, metrics=rows, params=params)

    def finish(self, summary: Mapping[str, Plain]) -> str:
        for key, value in summary.items():
            self._client.set_tag(self._id, f"tunefleet.{key}", str(value))
        if self._found.info.status == "RUNNING":
            self._client.set_terminated(self._id, status="FINISHED", end_time=self._at_ms)
        return self._where


class MlflowTracker:
    """Tells MLflow."""

    variables = ("MLFLOW_", "DATABRICKS_")

    def __init__(self, settings: TrackingSettings) -> None:
        self._settings = settings

    def fault(self) -> str | None:
        """Say that there is no address."""
        if self._settings.mlflow_uri is None:
            return (
                "MLFLOW_TRACKING_URI is not set. Set it, such as to http://localhost:5000 or sqlite:////data/runs.db."
            )
        return None

    def open(self, run: TrackedRun, folder: Path) -> OpenRun:
        """Look the run up by its tag, and make it if there is none."""
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 -- as above

        del folder  # all of it is where the address says
        assert self._settings.mlflow_uri is not None, "`fault` says so"
        client = MlflowClient(self._settings.mlflow_uri.get_secret_value())
        experiment = client.get_experiment_by_name(run.project)
        experiment_id = client.create_experiment(run.project) if experiment is None else experiment.experiment_id
        known = client.search_runs([experiment_id], f"tags.`{ID_TAG}` = '{run.id}'", max_results=1)
        found = known[0] if known else self._made(client, experiment_id, run)
        return _Run(client, found, run, f"run {found.info.run_id} of the experiment {run.project}")

    @staticmethod
    def _made(client: Any, experiment_id: str, run: TrackedRun) -> Any:
        tags = {ID_TAG: run.id, "tunefleet.group": run.group}
        return client.create_run(experiment_id, start_time=round(run.at * 1000), tags=tags, run_name=run.name)


def make(settings: TrackingSettings) -> MlflowTracker:
    """Return the tracker; see `catalog.MakeTracker`."""
    return MlflowTracker(settings)
