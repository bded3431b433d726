"""What is there once a wheel is installed: the version, the manual page, completion in real shells."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import extras
from tests.packaging.making import run

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
ASKED = """
eval "$(tunefleet completion bash)"
COMP_WORDS=({words}); COMP_CWORD={last}
$(complete -p tunefleet | sed 's/.*-F \\([^ ]*\\).*/\\1/') tunefleet
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_the_command_says_the_version_of_the_wheel(bin_: Path) -> None:
    assert run(bin_ / "tunefleet", "--version").strip() == "tunefleet 0.9.1"


def test_without_an_extra_server_worker_and_agent_are_imported(bin_: Path) -> None:
    """With nothing else to be found: what is imported and not declared would be missing."""
    code = f"import {', '.join(extras.SIDES)}, importlib.util as u; print(u.find_spec('torch'), u.find_spec('boto3'))"
    assert run(bin_ / "python", "-c", code).strip() == "None None"


def test_doctor_says_which_extra_training_needs(bin_: Path) -> None:
    found = {each["name"]: each for each in json.loads(run(bin_ / "tunefleet", "doctor", "--json"))}
    assert "pip install 'tunefleet[train] @ file://" in found["Training libraries"]["mend"]


def test_each_extra_of_the_wheel_is_tried_by_make_extras(wheel: Path) -> None:
    there, requirements = extras.metadata(wheel)
    assert set(extras.MODULES) == {extras.BASE, *there}
    assert "boto3" in {each.name for each in extras.requires(requirements, "all")}
    assert extras.requires(requirements, extras.BASE) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tunefleet submit --fol", {"--follow"}),
        pytest.param("tunefleet sub", {"submit"}),
        pytest.param("tunefleet keys cr", {"create"}),
    ],
)
def test_bash_completes(bin_: Path, words: str, found: set[str]) -> None:
    script = ASKED.format(words=words, last=len(words.split()) - 1)
    said = run("bash", "--norc", "-c", script, PATH=f"{bin_}:/usr/bin:/bin")
    assert set(said.split()) == found


@pytest.mark.parametrize("shell", ["fish", pytest.param("zsh")])
def test_other_shells_are_answered_as_their_script_asks(bin_: Path, tmp_path: Path, shell: str) -> None:
    """What the script asks with is in it; a shell that is here reads it, too."""
    asking = {"_TUNEFLEET_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "tunefleet submit --fol"}
    more = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
    script = tmp_path / "script"
    script.write_text(run(bin_ / "tunefleet", "completion", shell), encoding="utf-8")
    text = script.read_text(encoding="utf-8")
    assert f"_TUNEFLEET_COMPLETE={asking['_TUNEFLEET_COMPLETE']}" in text
    assert [name for name in ("_TYPER_COMPLETE_ARGS", *more) if f"{name}=" not in text] == []
    assert "--follow" in run(bin_ / "tunefleet", **asking, **more)
    if shutil.which(shell) is not None:
        run(shell, "-n", script)


def test_the_manual_page_is_installed_and_drawn_without_a_warning(bin_: Path) -> None:
    page = bin_.parent / "share/man/man1/tunefleet.1"
    assert page.is_file()
    if shutil.which("groff") is None:
        pytest.skip("groff is not here to draw it")
    drawn = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, timeout=120, check=True
    )
    assert drawn.stderr == ""
    assert "tunefleet submit FILE" in drawn.stdout
