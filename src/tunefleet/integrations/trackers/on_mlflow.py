"""MLflow: one experiment per project and one run per cycle, which is identified by a tag."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.integrations.trackers.contract import OpenRun, Plain, TrackedRun
from tunefleet.settings import TrackingSettings

ID_TAG: Final = "tunefleet.run"
_MAX_PARAM: Final = 6000
"""MLflow's maximum length of a parameter value."""


class _Run:
    """An open run; data that a killed child has sent already is not sent again."""

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
    """Sends runs to MLflow."""

    variables = ("MLFLOW_", "DATABRICKS_")

    def __init__(self, settings: TrackingSettings) -> None:
        self._settings = settings

    def fault(self) -> str | None:
        """Return an error if there is no tracking URI."""
        if self._settings.mlflow_uri is None:
            return (
                "MLFLOW_TRACKING_URI is not set. Set it, such as to http://localhost:5000 or sqlite:////data/runs.db."
            )
        return None

    def open(self, run: TrackedRun, folder: Path) -> OpenRun:
        """Find the run by its tag, or create it."""
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 -- as above

        del folder  # everything is stored at the tracking URI
        assert self._settings.mlflow_uri is not None, "checked by `fault`"
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
