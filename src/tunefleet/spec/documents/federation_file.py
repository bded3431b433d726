"""Parses a federation file, with line and column for every error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.documents.fault_messages import explain
from tunefleet.spec.documents.overrides import deep_set
from tunefleet.spec.options.federation_options import FederationSpec
from tunefleet.spec.text import Source, read_text
from tunefleet.spec.value_preview import first_faults


def parse_federation(
    text: str, *, overrides: Mapping[str, Any] | None = None, filename: str | None = None
) -> FederationSpec:
    """Parse the spec of a federation.

    Args:
        text: YAML or JSON; may be empty.
        overrides: Dotted path → value to set before validation.
        filename: Its name, for messages.

    Raises:
        SpecError: If anything is invalid; lists every error, in the order of the text, with line and column.
    """
    source = read_text(text, filename=filename)
    data = {} if source.data is None else source.data
    if not isinstance(data, dict):
        raise SpecError([Fault("", "the file is not a mapping (`key: value` lines)", 1, 1)], filename=filename)
    for path, value in (overrides or {}).items():
        deep_set(data, path, value)
    try:
        return FederationSpec.model_validate(data)
    except ValidationError as error:
        # With overrides, the positions no longer match the user's file.
        faults = explain(error, FederationSpec, Source(data) if overrides else source)
        if overrides:
            faults = [Fault(fault.path, fault.message, hint=fault.hint) for fault in faults]
        raise SpecError(first_faults(faults), filename=filename) from None
