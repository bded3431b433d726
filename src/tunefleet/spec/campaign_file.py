"""Read the campaigns that a user wrote: the scheduler's `config.yaml`, a top-level key each, faults with lines."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.campaign import CampaignSpec
from tunefleet.spec.explain import explain, fault_at
from tunefleet.spec.shown import first_faults
from tunefleet.spec.text import Source, read_text

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def parse_campaigns(text: str, *, filename: str | None = None) -> dict[str, CampaignSpec]:
    """Read all campaigns of a file, those that are not enabled, too.

    Args:
        text: YAML or JSON: name → campaign.
        filename: Its name, for messages.

    Returns:
        By name, in the order of the file.

    Raises:
        SpecError: If anything is wrong; lists every fault of all of them, in the order of the text.
    """
    source = read_text(text, filename=filename)
    if not isinstance(source.data, dict) or not source.data:
        hint = "write one block for each campaign: its name, then its keys below it"
        raise SpecError([Fault("", "the document names no campaign", 1, 1, hint)], filename=filename)
    faults: list[Fault] = []
    found = {name: _read(str(name), block, source, faults) for name, block in source.data.items()}
    if faults:
        raise SpecError(first_faults(faults), filename=filename)
    return {str(name): spec for name, spec in found.items() if spec is not None}


def dump_campaign_spec(spec: CampaignSpec) -> dict[str, Any]:
    """Return a campaign as it is stored: what was said of it, and no defaults."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def load_campaign_spec(data: Any) -> CampaignSpec:
    """Return a campaign that `dump_campaign_spec` wrote."""
    return CampaignSpec.model_validate(data)


def _read(name: str, block: Any, source: Source, faults: list[Fault]) -> CampaignSpec | None:
    if not _NAME.fullmatch(name):
        hint = "begin with a letter or digit; then letters, digits, . _ and -, a hundred at most"
        faults.append(fault_at((name,), "is no name for a campaign", source, hint=hint, key=True))
    try:
        return CampaignSpec.model_validate(block)
    except ValidationError as error:
        faults += explain(error, CampaignSpec, source, prefix=(name,))
        return None
