"""Campaigns with the files that they name: each travels once, and the campaign remembers its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tunefleet.client import routes_campaigns, transfer
from tunefleet.client.call import Flow, ask
from tunefleet.errors import DataError, ModelError
from tunefleet.spec.base import is_url
from tunefleet.spec.builtin import BUILTIN_PREFIX
from tunefleet.spec.campaign import CampaignSpec
from tunefleet.wire.campaign import CampaignApplied

_LOCAL = ("./", "../", "/", "~")


def named_files(spec: CampaignSpec, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield what a campaign names that lies on this machine: key, path, and what it is.

    Args:
        spec: Of the campaign.
        folder: Paths are taken from there: the folder of its file.

    Raises:
        DataError: If a dataset is not there.
        ModelError: If a model that can only be a path is not there.
    """
    for number, dataset in enumerate(spec.datasets):
        if dataset.path is None or is_url(dataset.path) or dataset.path.startswith(BUILTIN_PREFIX):
            continue
        file = folder / Path(dataset.path).expanduser()
        if not file.exists():
            raise DataError(
                f"datasets.{number}.path names {dataset.path}, but there is no {file.absolute()}.",
                hint="Paths are taken from the folder of the file; a dataset of the hub is written as name.",
            )
        yield f"datasets.{number}.path", file, "dataset"
    model = folder / Path(spec.model_repo).expanduser()
    if model.is_dir():
        yield "model_repo", model, "model"
    elif spec.model_repo.startswith(_LOCAL):
        raise ModelError(f"model_repo names {spec.model_repo}, but there is no folder {model.absolute()}.")


def send(
    campaigns: Mapping[str, CampaignSpec],
    folder: Path,
    *,
    start: bool = False,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[tuple[CampaignApplied, ...]]:
    """Make or change campaigns by name, with the files that they name; see `apply`.

    Args:
        campaigns: Name → what is wanted of it.
        folder: Of the file that says so.
        start: Let those that are paused, held or stopped go on.
        on_progress: Told how far uploads are.

    Raises:
        DataError: If a dataset is not there.
        ModelError: If a model is not there.
    """
    whole: dict[str, CampaignSpec] = {}
    for name, spec in campaigns.items():
        inputs: dict[str, str] = {}
        for key, file, kind in named_files(spec, folder):
            inputs[key] = (yield from transfer.push(file, kind=kind, on_progress=on_progress)).digest
        whole[name] = spec.model_copy(update={"inputs": inputs}) if inputs else spec
    return (yield from ask(routes_campaigns.apply_campaigns(whole, start=start)))
