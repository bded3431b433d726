"""Weights & Biases: one run per cycle, online with a fixed id, offline as one file for `wandb sync`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tunefleet.integrations.trackers.contract import NotTracked, OpenRun, Plain, TrackedRun
from tunefleet.settings import TrackingSettings

# Marker in the folder of a complete offline run.
_COMPLETE: Final = "tunefleet.whole"


class _Run:
    """An open run."""

    def __init__(self, run: Any, kept: Path | None, scratch: tempfile.TemporaryDirectory[str] | None) -> None:
        self._run, self._kept, self._scratch = run, kept, scratch

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        # A resumed run continues after its last step: the library drops rows of earlier steps.
        self._run.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, Plain]) -> str:
        self._run.summary.update(dict(summary))
        self._run.finish()
        if self._kept is None:
            where = str(self._run.url)
        else:
            (self._kept / _COMPLETE).touch()
            where = str(self._kept)
        if self._scratch is not None:
            self._scratch.cleanup()
        return where


class _CompleteRun:
    """An offline run that an earlier child wrote completely."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Do nothing: the row is in the file."""

    def finish(self, summary: Mapping[str, Plain]) -> str:
        del summary  # also in the file
        return str(self._folder)


class WandbTracker:
    """Sends runs to Weights & Biases."""

    variables = ("WANDB_",)

    def __init__(self, settings: TrackingSettings) -> None:
        self._settings = settings

    def fault(self) -> str | None:
        """Return an error if there is no key, or the library is disabled."""
        settings = self._settings
        if settings.wandb_mode == "disabled":
            return "WANDB_MODE is disabled. Unset it."
        if settings.wandb_key is None and not settings.wandb_offline:
            return "WANDB_API_KEY is not set. Set it, or WANDB_MODE=offline."
        return None

    def open(self, run: TrackedRun, folder: Path) -> OpenRun:
        """Open the run with its id."""
        offline = self._settings.wandb_offline
        scratch = None if offline else tempfile.TemporaryDirectory(prefix="tunefleet-wandb-")
        root = folder.absolute() / "wandb" if scratch is None else Path(scratch.name)
        root.mkdir(parents=True, exist_ok=True)
        if offline and (complete := _complete_folder(root, run.id)) is not None:
            return _CompleteRun(complete)
        opened = self._init(run, root)
        kept = Path(opened.dir).parent if offline else None
        return _Run(opened, kept, scratch)

    def _init(self, run: TrackedRun, root: Path) -> Any:
        # The library reads `wandb/settings` of the current folder, which could redirect the key to another host.
        os.chdir(root)
        import wandb  # noqa: PLC0415 -- takes seconds, and only the child needs it

        # Send no data about this machine: no packages, load, code, console or command line.
        quiet = wandb.Settings(
            console="off", disable_code=True, disable_git=True, host="tunefleet", quiet=True, silent=True,
            x_disable_machine_info=True, x_disable_meta=True, x_disable_stats=True, x_save_requirements=False,
        )  # fmt: skip
        opened = wandb.init(
            entity=self._settings.wandb_entity,
            project=run.project,
            id=run.id,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            mode="offline" if self._settings.wandb_offline else "online",
            resume="allow",
            dir=str(root),
            settings=quiet,
        )
        if opened.disabled:
            raise NotTracked("Weights & Biases is disabled on this machine.", hint="Check `wandb status`.")
        return opened


def _complete_folder(root: Path, run_id: str) -> Path | None:
    """Return the folder of a complete offline run; deletes incomplete ones of a killed child."""
    found = None
    for folder in (root / "wandb").glob(f"offline-run-????????_??????-{run_id}"):
        if (folder / _COMPLETE).exists():
            found = folder
        else:
            shutil.rmtree(folder)
    return found


def make(settings: TrackingSettings) -> WandbTracker:
    """Return the tracker; see `catalog.MakeTracker`."""
    return WandbTracker(settings)
