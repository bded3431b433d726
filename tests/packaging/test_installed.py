"""What is there once a wheel is installed: the version, the manual page, completion in real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.making import VERSION, build, environment_with, one, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ASKED = """
eval "$(tunefleet completion bash)"
COMP_WORDS=({words}); COMP_CWORD={last}
$(complete -p tunefleet | sed 's/.*-F \\([^ ]*\\).*/\\1/') tunefleet
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def bin_(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that a wheel was installed into."""
    folder = tmp_path_factory.mktemp("installed")
    build(repository, folder, "wheel", **{VERSION: "0.9.1"})
    return environment_with(one(folder, "*.whl"), folder / "env")


def test_the_command_says_the_version_of_the_wheel(bin_: Path) -> None:
    assert run(bin_ / "tunefleet", "--version").strip() == "tunefleet 0.9.1"


@pytest.mark.parametrize(
    ("words", "found"),
    [("tunefleet sub", {"submit"}), ("tunefleet keys cr", {"create"}), ("tunefleet submit --fol", {"--follow"})],
)
def test_bash_completes(bin_: Path, words: str, found: set[str]) -> None:
    script = ASKED.format(words=words, last=len(words.split()) - 1)
    said = run("bash", "--norc", "-c", script, PATH=f"{bin_}:/usr/bin:/bin")
    assert set(said.split()) == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_their_script(bin_: Path, tmp_path: Path, shell: str) -> None:
    script = tmp_path / "script"
    script.write_text(run(bin_ / "tunefleet", "completion", shell), encoding="utf-8")
    assert "_TUNEFLEET_COMPLETE" in script.read_text(encoding="utf-8")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here to read it")
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
