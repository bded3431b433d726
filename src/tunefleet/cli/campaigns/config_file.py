"""The file of campaigns that a command is given: `config.yaml` in the working directory, unless it names another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tunefleet.errors import Fault, InputError, SpecError

if TYPE_CHECKING:
    from tunefleet.spec.documents.campaign_document import CampaignSpec

CONFIG: Final = Path("config.yaml")
_EXAMPLE: Final = "Name another file with --config; `example-config.yaml` shows what one looks like."
Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The campaigns; default: config.yaml in this folder.")
]


def read(config: Path, names: list[str] | None = None, *, here: bool = False) -> dict[str, Any]:
    """Return the campaigns of a file by name.

    Raises:
        InputError: If the file cannot be read, or has no campaign of such a name.
        SpecError: If anything in it is wrong, or a file that it names is not there; lists every fault.
    """
    # The spec's reader takes long to import, which listing and showing do not need.
    from tunefleet.spec.documents.campaign_file import parse_campaigns

    try:
        text = config.expanduser().read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"There is no file {config}.", hint=_EXAMPLE) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{config} cannot be read as text.", hint=_EXAMPLE) from error
    found = parse_campaigns(text, filename=str(config))
    missing = [name for name in names or () if name not in found]
    if missing:
        raise InputError(f"{config} has no campaign {missing[0]}.", hint=f"It has {', '.join(found)}.")
    wanted = {name: spec for name, spec in found.items() if not names or name in names}
    found_faults = _faults(wanted, text, config.expanduser(), here=here)
    faults = sorted(found_faults, key=lambda fault: (fault.line, fault.column))
    if faults:
        raise SpecError(faults, filename=str(config))
    return wanted


def _faults(specs: Mapping[str, CampaignSpec], text: str, config: Path, *, here: bool) -> Iterator[Fault]:
    """Yield what is wrong with campaigns that are well written, where it stands in their file."""
    from tunefleet.campaign import providers
    from tunefleet.client.campaign_files import file_errors
    from tunefleet.spec.documents.fault_messages import fault_at
    from tunefleet.spec.text import read_text

    source = read_text(text, filename=str(config))
    for name, spec in specs.items():
        if here and spec.provider is not None and spec.provider not in providers.names():
            known = f"there is {', '.join(providers.names())}"
            yield fault_at((name, "provider"), f"is no provider: {spec.provider!r}", source, hint=known)
        for key, message, hint in file_errors(spec, config.parent, built_in(spec)):
            path = (name, *(int(part) if part.isdecimal() else part for part in key.split(".")))
            yield fault_at(path, message, source, hint=hint)


def built_in(spec: CampaignSpec) -> dict[int, Path]:
    """Return the files of datasets that ship with the package, by the number of the dataset."""
    from tunefleet.workloads import assets

    return {
        number: assets.locate(each.path, "dataset") / f"{each.split}.jsonl"
        for number, each in enumerate(spec.datasets)
        if each.path is not None and assets.is_builtin(each.path)
    }
