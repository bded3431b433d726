"""The file of campaigns that a command is given: `config.yaml` in the working directory, unless it names another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tunefleet.errors import InputError

CONFIG: Final = Path("config.yaml")
Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The campaigns; default: config.yaml in this folder.")
]


def read(config: Path, names: list[str] | None = None) -> dict[str, Any]:
    """Return the campaigns of a file by name.

    Args:
        config: The file.
        names: Only these; all if none are given.

    Raises:
        InputError: If the file cannot be read, or has no campaign of such a name.
        SpecError: If anything in it is wrong; lists every fault.
    """
    # The spec's reader takes long to import, which listing and showing do not need.
    from tunefleet.spec.campaign_file import parse_campaigns

    try:
        text = config.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "Name another file with --config; `example-config.yaml` shows what one looks like."
        raise InputError(f"{config} cannot be read as text.", hint=hint) from error
    found = parse_campaigns(text, filename=str(config))
    missing = [name for name in names or () if name not in found]
    if missing:
        raise InputError(f"{config} has no campaign {missing[0]}.", hint=f"It has {', '.join(found)}.")
    return {name: spec for name, spec in found.items() if not names or name in names}
