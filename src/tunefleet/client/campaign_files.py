"""Campaigns with the files that they name: each travels once, and the campaign remembers its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tunefleet.client import routes_campaigns, transfer
from tunefleet.client.call import Flow, ask
from tunefleet.errors import DataError, ModelError
from tunefleet.spec.base import is_url
from tunefleet.spec.builtin import BUILTIN_PREFIX
from tunefleet.wire.campaign import CampaignApplied

if TYPE_CHECKING:
    from tunefleet.spec.campaign import CampaignSpec

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
    for key, named, path, kind in _places(spec, folder):
        if not path.exists():
            message, hint = _absent(key, named, path, kind)
            raise (DataError if kind == "dataset" else ModelError)(message, hint=hint)
        yield key, path, kind


def absent_files(spec: CampaignSpec, folder: Path) -> Iterator[tuple[str, str, str | None]]:
    """Yield for each file or folder that a campaign names and that is not there: key, what is wrong, the way out.

    Args:
        spec: Of the campaign.
        folder: As in `named_files`.
    """
    for key, named, path, kind in _places(spec, folder):
        if not path.exists():
            yield key, *_absent(key, named, path, kind)


def _places(spec: CampaignSpec, folder: Path) -> Iterator[tuple[str, str, Path, str]]:
    for number, dataset in enumerate(spec.datasets):
        if dataset.path is not None and not is_url(dataset.path) and not dataset.path.startswith(BUILTIN_PREFIX):
            yield f"datasets.{number}.path", dataset.path, folder / Path(dataset.path).expanduser(), "dataset"
    for key, named in (("model_repo", spec.model_repo), ("tokenizer_id", spec.tokenizer_id)):
        if named is not None and ((path := folder / Path(named).expanduser()).is_dir() or named.startswith(_LOCAL)):
            yield key, named, path, "model"


def _absent(key: str, named: str, path: Path, kind: str) -> tuple[str, str | None]:
    if kind == "dataset":
        hint = "Paths are taken from the folder of the file; a dataset of the hub is written as name."
        return f"{key} names {named}, but there is no {path.absolute()}.", hint
    return f"{key} names {named}, but there is no folder {path.absolute()}.", None


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
