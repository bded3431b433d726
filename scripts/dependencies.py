"""Say what Tunefleet installs, and look whether anything of it is known to be vulnerable.

    python -m scripts.dependencies sbom FILE    write a bill of materials (CycloneDX, JSON)
    python -m scripts.dependencies audit        ask the advisories of PyPI, or those of OSV, about each of them

Both are about `tunefleet[all]`, in the versions of this environment; the tools live in an environment of their own
(.venv-audit). An audit in which a package could not be looked at has failed; one that no source of advisories answers
has not been run, and says so (exit status 3).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = ROOT / ".venv-audit"
WANTED: Final = ("cyclonedx-bom==7.5.0", "pip-audit==2.10.1")
SOURCES: Final = ("pypi", "osv")
NOT_RUN: Final = 3
NO_ANSWER: Final = "not run: no advisory source answered"


def installed(name: str = "tunefleet[all]") -> list[str]:
    """Return what a requirement installs besides itself, as sorted lines of `name==version`.

    Raises:
        PackageNotFoundError: If a part of it is not in this environment.
    """
    first = Requirement(name)
    found: dict[str, str] = {}
    waiting = [first]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        for extra in ("", *sorted(wanted.extras)):
            key = (canonicalize_name(wanted.name), extra)
            if key in seen:
                continue
            seen.add(key)
            there = distribution(wanted.name)
            # Where a wheel was built is no part of the release that advisories know.
            found[key[0]] = there.version.partition("+")[0]
            waiting += _needs(there.requires or [], extra)
    del found[canonicalize_name(first.name)]
    return [f"{each}=={version}" for each, version in sorted(found.items())]


def _needs(requires: list[str], extra: str) -> Iterator[Requirement]:
    for line in requires:
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            yield needed


def tools() -> Path:
    """Make the environment of the tools if it is not there, and return the folder of its programs."""
    ready = TOOLS / f".ready-{'-'.join(WANTED)}"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", TOOLS], check=True)
        pip = [TOOLS / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *WANTED]
        subprocess.run(pip, check=True)
        ready.touch()
    return TOOLS / "bin"


def sbom(file: Path) -> None:
    """Write the bill of materials; the tool holds it against CycloneDX's schema first."""
    command = [
        tools() / "cyclonedx-py",
        "requirements",
        "--pyproject",
        ROOT / "pyproject.toml",
        "--mc-type",
        "application",
    ]
    command += ["--output-reproducible", "--of", "JSON", "--validate", "-o", file, "-"]
    lines = installed()
    # It warns that a list of requirements says nothing of which needs which.
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run(command, input="\n".join(lines), text=True, check=True, env=quiet)
    print(f"{file}: {len(lines)} packages")


def audit() -> int:
    """Ask the sources in turn until one answers, print what it says, and return the exit status."""
    lines = installed()
    said: dict[str, str] = {}
    for source in SOURCES:
        report, words = _ask(source, lines)
        if report is not None and any("skip_reason" not in each for each in report["dependencies"]):
            print(f"Asked: {source}, about {len(lines)} packages")
            return judge(report, lines)
        # One that knows nothing of any of them is a mirror without advisories.
        said[source] = words or "it knows none of these packages"
    print(NO_ANSWER)
    for source, words in said.items():
        print(f"  {source}: {words}")
    return NOT_RUN


def _ask(source: str, lines: list[str]) -> tuple[dict[str, Any] | None, str]:
    """Return pip-audit's report, or None if it could make none, and its last words."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "requirements.txt", Path(folder) / "report.json"
        wanted.write_text("\n".join(lines))
        # Not `--strict`: it ends with the first package that is skipped, and `judge` names all of them.
        command = [tools() / "pip-audit", "--disable-pip", "--no-deps", "--progress-spinner", "off"]
        command += ["--vulnerability-service", source, "-r", wanted, "--format", "json", "--output", report]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found: dict[str, Any] | None = json.loads(report.read_text()) if report.exists() else None
        return found, "" if found else (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def judge(report: dict[str, Any], lines: list[str]) -> int:
    """Print what pip-audit has found, and return 1 if a package is vulnerable or was not looked at.

    Args:
        report: pip-audit's, as JSON.
        lines: What was to be looked at.
    """
    looked_at: set[str] = set()
    faults = []
    for each in report["dependencies"]:
        name = canonicalize_name(each["name"])
        if "skip_reason" in each:
            faults.append(f"{name} was skipped: {each['skip_reason']}")
            continue
        looked_at.add(f"{name}=={each['version']}")
        for found in each["vulns"]:
            mended = ", ".join(found.get("fix_versions") or []) or "no version"
            faults.append(f"{name} {each['version']} has {found['id']}; mended in {mended}")
    faults += [f"{line} was not looked at" for line in lines if line not in looked_at]
    for fault in faults:
        print(fault)
    if not faults:
        print("Nothing of it is known to be vulnerable.")
    return 1 if faults else 0


def main(arguments: list[str]) -> int:
    """Run one of the two."""
    try:
        match arguments:
            case ["sbom", file]:
                sbom(Path(file))
                return 0
            case ["audit"]:
                return audit()
    except PackageNotFoundError as error:
        print(f"{error.name} is not installed here: run `make environment` first.")
        return 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
