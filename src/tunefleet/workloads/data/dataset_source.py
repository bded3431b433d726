"""A dataset by name: a file, a folder, a bundled one, or one on the Hub; and a split of it, or a slice.

Resolves locations on this machine; `readers` handles the formats.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import datasets
from datasets.exceptions import DatasetNotFoundError

from tunefleet.artifacts.archive import unpacked_path
from tunefleet.errors import DataError
from tunefleet.spec import BUILTIN_PREFIX
from tunefleet.spec.base import is_written_as_path
from tunefleet.workloads import assets
from tunefleet.workloads.common import containment
from tunefleet.workloads.common import hub_files as hub
from tunefleet.workloads.data.readers import Rows, files_of_split, read_path, take, without_media
from tunefleet.workloads.data.streams import HubReader, Reader, TableReader, chained, open_file

_SPLIT = re.compile(r"^(?P<name>[^\[\]]+)(\[(?P<from>-?\d+%?)?:(?P<to>-?\d+%?)?\])?$")


@dataclass(frozen=True, slots=True)
class HubSet:
    """Configuration and revision of a dataset on the Hub."""

    config: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A dataset by name, and its location on this machine."""

    name: str
    local: str | None
    workspace: Path
    hub: HubSet | None = None

    @property
    def on_disk(self) -> bool:
        """Whether it is on this machine; else the Hub is queried, or its cache."""
        return self.local is not None or self.hub is None or not self._may_be_hub_name

    def read(self, split: str, limit: int | None) -> tuple[Rows, str]:
        """Read one split, with its slice; return the rows and their name for messages."""
        match = _SPLIT.match(split)
        if match is None:
            raise DataError(f"Cannot parse split {split!r}.", hint="Use a name, or a slice such as train[:10%].")
        path = self._path()
        if path is None:
            return first(_from_hub(self.name, split, self.hub or HubSet()), limit), f"{self.name} ({split})"
        # A slice counts from the rows of the whole split, so the limit applies after it.
        sliced = match["from"] is not None or match["to"] is not None
        rows = read_path(path, match["name"], None if sliced else limit)
        origin = self.name if path.is_file() else f"{self.name} ({split})"
        if sliced:
            rows = _slice(rows, split, match["name"])
        return first(rows, limit), origin

    def stream(self, split: str) -> tuple[Reader, str]:
        """Open one split as a stream; return its reader and its name for messages."""
        path = self._path()
        if path is None:
            return _stream_from_hub(self.name, split, self.hub or HubSet()), f"{self.name} ({split})"
        if path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "state.json").exists()):
            return TableReader(read_path(path, split)), f"{self.name} ({split})"
        if not path.is_dir():
            return open_file(path), self.name
        return chained([open_file(file) for file in files_of_split(path, split)]), f"{self.name} ({split})"

    @property
    def _may_be_hub_name(self) -> bool:
        """Whether the name may be one on the Hub: a path of that name in the current folder is not meant."""
        return not self.name.startswith(BUILTIN_PREFIX) and not is_written_as_path(self.name)

    def _path(self) -> Path | None:
        """Return its path; None if it is on the Hub."""
        if self.name.startswith(BUILTIN_PREFIX):
            return assets.locate(self.name, "dataset")
        if self.local is None and self.hub is not None and self._may_be_hub_name:
            return None
        return unpacked_path(Path(self.local or self.name).expanduser(), self.workspace)


def first(rows: Rows, limit: int | None) -> Rows:
    """Return the first rows; all of them without a limit."""
    return rows if limit is None or len(rows) <= limit else take(rows, range(limit))


def _slice(rows: Rows, split: str, name: str) -> Rows:
    """Cut `name[from:to]` as the `datasets` library does."""
    try:
        (instruction,) = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(rows)})
    except (AssertionError, ValueError) as error:
        raise DataError(f"Split {split!r} does not fit {len(rows)} rows: {error}.") from error
    return take(rows, range(instruction.from_ or 0, len(rows) if instruction.to is None else instruction.to))


def _checked(name: str, wanted: HubSet) -> hub.Resolved:
    """Return the arguments for `load_dataset`, after checking that the dataset's card names no other files."""
    found = hub.resolve(name, "dataset", wanted.revision)
    cached = Path(found.path) if found.path != name else None
    # Only the card is downloaded for the check: `datasets` would open what it names.
    containment.check_dataset(cached or hub.download_files(name, found.revision, containment.CARDS, kind="dataset"))
    return found


def _stream_from_hub(name: str, split: str, wanted: HubSet) -> Reader:
    path, revision = _checked(name, wanted)
    try:
        stream = datasets.load_dataset(path, wanted.config, split=split, revision=revision, streaming=True)
    except (DatasetNotFoundError, ValueError, OSError) as error:
        raise DataError(f"Dataset {name} cannot be opened: {error}", detail=repr(error)) from error
    return HubReader(without_media(stream))


def _from_hub(name: str, split: str, wanted: HubSet) -> Rows:
    path, revision = _checked(name, wanted)
    try:
        loaded = datasets.load_dataset(path, wanted.config, split=split, revision=revision)
    except (DatasetNotFoundError, ValueError, OSError) as error:
        raise DataError(f"Dataset {name} cannot be loaded: {error}", detail=repr(error)) from error
    rows: Rows = without_media(loaded)
    return rows
