"""The campaign configuration file: `config.yaml` in the working directory, or that of `--config`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tunefleet.errors import Fault, InputError, SpecError

if TYPE_CHECKING:
    from tunefleet.spec.documents.campaign_document import CampaignSpec

CONFIG: Final = Path("config.yaml")
_EXAMPLE: Final = "Choose another file with --config. `example-config.yaml` is an example."
Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="Campaign file; default: config.yaml in this folder.")
]


def read(config: Path, names: list[str] | None = None, *, local: bool = False) -> dict[str, Any]:
    """Return the campaigns of a file by name.

    Raises:
        InputError: If the file cannot be read, or a name is not in it.
        SpecError: If it is invalid, or a file that it names is missing; lists every error.
    """
    # Imported here: the spec parser is slow to import, and `list` and `show` do not need it.
    from tunefleet.spec.documents.campaign_file import parse_campaigns
    from tunefleet.spec.file_decoder import decode_file

    try:
        text = decode_file(config.expanduser().read_bytes(), str(config))
    except FileNotFoundError as error:
        raise InputError(f"File {config} not found.", hint=_EXAMPLE) from error
    except OSError as error:
        raise InputError(f"{config} cannot be read.", hint=_EXAMPLE) from error
    found = parse_campaigns(text, filename=str(config))
    missing = [name for name in names or () if name not in found]
    if missing:
        raise InputError(f"{config} has no campaign {missing[0]}.", hint=f"Available: {', '.join(found)}.")
    wanted = {name: spec for name, spec in found.items() if not names or name in names}
    found_faults = _faults(wanted, text, config.expanduser(), local=local)
    faults = sorted(found_faults, key=lambda fault: (fault.line, fault.column))
    if faults:
        raise SpecError(faults, filename=str(config))
    return wanted


def _faults(specs: Mapping[str, CampaignSpec], text: str, config: Path, *, local: bool) -> Iterator[Fault]:
    """Yield errors of campaigns with valid syntax, with their positions in the file."""
    from tunefleet.campaign import providers
    from tunefleet.client.campaign_files import file_errors
    from tunefleet.spec.documents.fault_messages import fault_at
    from tunefleet.spec.text import read_text

    source = read_text(text, filename=str(config))
    for name, spec in specs.items():
        if local and spec.provider is not None and spec.provider not in providers.names():
            known = f"available: {', '.join(providers.names())}"
            yield fault_at((name, "provider"), f"unknown provider {spec.provider!r}", source, hint=known)
        for key, message, hint in file_errors(spec, config.parent, built_in(spec)):
            # Numbers are list indexes in the path of an error.
            path = (name, *(int(part) if part.isdecimal() else part for part in key.split(".")))
            yield fault_at(path, message, source, hint=hint)


def built_in(spec: CampaignSpec) -> dict[int, Path]:
    """Return the files of built-in datasets by dataset index."""
    from tunefleet.workloads import assets

    return {
        number: assets.locate(each.path, "dataset") / f"{each.split}.jsonl"
        for number, each in enumerate(spec.datasets)
        if each.path is not None and assets.is_builtin(each.path)
    }
