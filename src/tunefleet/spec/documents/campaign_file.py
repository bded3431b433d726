"""Parses a campaign file, the scheduler's `config.yaml` with one top-level key per campaign."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.documents.fault_messages import explain, fault_at
from tunefleet.spec.text import Path, Source, read_text
from tunefleet.spec.value_preview import first_faults

# Validation passes; pydantic validates nested blocks first, so each pass may reveal errors of an outer one.
_MAX_PASSES: Final = 4
_UNKNOWN: Final = "extra_forbidden"
_INSTEAD: Final[dict[Any, Any]] = {"model_repo": "org/model", "datasets": [{"name": "org/rows"}]}
_DECIDING: Final = frozenset({"datasets", "provider", "task_type"})
# Keys whose validity depends on the deciding ones.
_DECIDED: Final = frozenset({"chat_template", "datasets", "gate", "lora", "quantization", "training"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def parse_campaigns(text: str, *, filename: str | None = None) -> dict[str, CampaignSpec]:
    """Parse all campaigns of a file, including disabled ones.

    Args:
        text: YAML or JSON: name → campaign.
        filename: Its name, for messages.

    Returns:
        Campaigns by name, in the order of the file.

    Raises:
        SpecError: If anything is invalid; lists the errors of all campaigns, in the order of the text.
    """
    source = read_text(text, filename=filename)
    if not isinstance(source.data, dict) or not source.data:
        hint = "write one block per campaign: its name, then its keys below it"
        raise SpecError([Fault("", "the file contains no campaign", 1, 1, hint)], filename=filename)
    faults: list[Fault] = []
    found = {name: _read(str(name), block, source, faults) for name, block in source.data.items()}
    if faults:
        raise SpecError(first_faults(faults), filename=filename)
    return {str(name): spec for name, spec in found.items() if spec is not None}


def dump_campaign_spec(spec: CampaignSpec) -> dict[str, Any]:
    """Return a campaign as stored, without defaults."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def load_campaign_spec(data: Any) -> CampaignSpec:
    """Load a campaign from `dump_campaign_spec`."""
    return CampaignSpec.model_validate(data)


def _read(name: str, block: Any, source: Source, faults: list[Fault]) -> CampaignSpec | None:
    # The name becomes part of URLs, file names and Hub repositories.
    if not _NAME.fullmatch(name):
        hint = "start with a letter or digit, followed by letters, digits, . _ and -; at most 100 characters"
        faults.append(fault_at((name,), "is not a valid campaign name", source, hint=hint, key=True))
    try:
        return CampaignSpec.model_validate(block)
    except ValidationError as error:
        faults += explain(error, CampaignSpec, source, prefix=(name,))
        faults += _contradictions(name, block, error, source)
        return None


def _contradictions(name: str, block: Any, error: ValidationError, source: Source) -> Iterator[Fault]:
    """Yield errors across keys, which pydantic does not check while one of the keys is invalid."""
    # Validate again without the invalid keys, and drop errors that may only follow from their absence.
    absent: set[Path] = set()
    for _ in range(_MAX_PASSES):
        for each in error.errors(include_url=False):
            block, path = _without(block, tuple(each["loc"]))
            if each["type"] != _UNKNOWN:
                absent.add(path)
        try:
            CampaignSpec.model_validate(block)
        except ValidationError as other:
            error = other
        else:
            return
        for fault in explain(error, CampaignSpec, source, prefix=(name,)):
            below = fault.path.removeprefix(f"{name}.").split(".")
            if not any(_follows(below, [str(part) for part in each]) for each in absent):
                yield fault


def _without(data: Any, path: Path) -> tuple[Any, Path]:
    """Return data without the value at a path, or its nearest existing parent, and the removed path."""
    # Required values are replaced, not removed, so that the indexes of the other datasets stay the same.
    here = path[:1]
    if isinstance(data, dict) and path:
        if path[0] not in data or len(path) == 1:
            kept = {key: value for key, value in data.items() if key != path[0]}
            return ({**kept, path[0]: _INSTEAD[path[0]]} if path[0] in _INSTEAD else kept), here
        inner, left_out = _without(data[path[0]], path[1:])
        return {**data, path[0]: inner}, here + left_out
    if isinstance(data, list) and path and isinstance(path[0], int) and path[0] < len(data):
        inner, left_out = _without(data[path[0]], path[1:])
        inner = inner if isinstance(inner, dict) and left_out else _INSTEAD["datasets"][0]
        return [*data[: path[0]], inner, *data[path[0] + 1 :]], here + left_out
    return data, ()


def _follows(fault: Sequence[str], absent: Sequence[str]) -> bool:
    """Whether an error may only follow from a removed value: within it, next to it, or depending on it."""
    sibling = len(absent) > 1 and list(fault[:-1]) == list(absent[:-1])
    decided = len(absent) == 1 and absent[0] in _DECIDING and fault[0] in _DECIDED
    return list(fault[: len(absent)]) == list(absent) or sibling or decided
