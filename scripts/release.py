"""Check what a release publishes: `make release-check TAG=v0.1.0` builds it and compares it with tag and changelog.

Without a tag it is a dry run: only the version and the notes are not checked.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = "tunefleet/api/ui/index.html"
MAX_BYTES: Final = 100 << 20
"""PyPI's limit for one file."""
_HEADING: Final = re.compile(r"^## \[?(?P<version>[^\]\s]+)\]?.*$", re.MULTILINE)


def notes(changelog: str, version: str) -> str | None:
    """Return the section of a version in the changelog; None if there is none."""
    found = list(_HEADING.finditer(changelog))
    for at, heading in enumerate(found):
        if heading["version"] == version:
            end = found[at + 1].start() if at + 1 < len(found) else len(changelog)
            return changelog[heading.end() : end].strip()
    return None


def faults(folder: Path, site: Path | None, tag: str | None, changelog: str) -> Iterator[str]:
    """Yield what is wrong with the files of a release.

    Args:
        folder: Folder of wheel and source distribution.
        site: Folder of the built documentation; None: not checked.
        tag: Tag such as `v0.1.0`; None for a dry run.
    """
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        yield f"{folder} has {len(wheels)} wheels and {len(sources)} source distributions; one of each is released."
        return
    wheel, source = wheels[0], sources[0]
    versions = {parse_wheel_filename(wheel.name)[1], parse_sdist_filename(source.name)[1]}
    if len(versions) != 1:
        yield f"Wheel and source distribution have different versions: {', '.join(map(str, sorted(versions)))}."
    with zipfile.ZipFile(wheel) as archive:
        if PAGE not in archive.namelist():
            yield f"{wheel.name} lacks the web page ({PAGE})."
    with tarfile.open(source) as archive:
        if not any(name.endswith("/web/package.json") for name in archive.getnames()):
            yield f"{source.name} lacks the sources of the web page."
    large = [file.name for file in (wheel, source) if file.stat().st_size > MAX_BYTES]
    yield from (f"{name} is larger than PyPI accepts." for name in large)
    if site is not None and not (site / "index.html").is_file():
        yield f"{site} has no index.html: run `make site`."
    if tag is not None:
        yield from _tag_faults(tag, versions, changelog)


def _tag_faults(tag: str, versions: set[Version], changelog: str) -> Iterator[str]:
    try:
        wanted = Version(tag.removeprefix("v"))
    except InvalidVersion:
        yield f"The tag {tag} is not a version such as v0.1.0."
        return
    if versions != {wanted}:
        yield f"The tag is {tag}, but the files have version {', '.join(map(str, sorted(versions)))}."
    if not notes(changelog, str(wanted)):
        yield f"CHANGELOG.md has no section for {wanted}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong, or write the notes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of wheel and source distribution")
    parser.add_argument("--site", type=Path, help="folder of the documentation")
    parser.add_argument("--tag", help="tag of the release; without it a dry run")
    parser.add_argument("--notes", type=Path, help="file for the release notes")
    asked = parser.parse_args(arguments)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = list(faults(asked.folder, asked.site, asked.tag, changelog))
    print(*found or ["The release is complete." if asked.tag else "Dry run: the files are complete."], sep="\n")
    if not found and asked.tag and asked.notes:
        asked.notes.write_text((notes(changelog, asked.tag.removeprefix("v")) or "") + "\n", encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
