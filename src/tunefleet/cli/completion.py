"""`tunefleet completion`: the shell's script that completes commands, options and ids."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from tunefleet.cli.lazy_group import examples


@examples(
    'eval "$(tunefleet completion bash)"',
    "tunefleet completion zsh > ~/.zfunc/_tunefleet",
    "tunefleet completion fish > ~/.config/fish/completions/tunefleet.fish",
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell."""
    script = get_completion_script(prog_name="tunefleet", complete_var="_TUNEFLEET_COMPLETE", shell=shell)
    sys.stdout.write(script + "\n")
