"""A command group that imports a command when it runs, so that `tunefleet --help` stays under 0.2 s.

The table of commands is data: name, import path of the function, one line of help.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]
from typer.core import TyperCommand, TyperGroup

from tunefleet.cli.program import as_called, rename_in_help

F = TypeVar("F", bound=Callable[..., Any])
_EXAMPLES = "__examples__"
_SAME: Final = {"list": "ls", "ls": "list"}
# Commands of dstack, SkyPilot, FlowMesh and Slurm, and what does the same here.
_ELSEWHERE: Final = {
    "apply": "submit FILE", "launch": "submit FILE", "sbatch": "submit FILE",
    "ps": "ls", "status": "ls", "queue": "ls", "squeue": "ls", "task": "ls", "tasks": "ls", "runs": "ls", "jobs": "ls",
    "workflow": "ls --workflows", "workflows": "ls --workflows", "attach": "follow RUN", "delete": "rm RUN",
    "kill": "cancel RUN", "down": "cancel RUN", "scancel": "cancel RUN", "fleet": "workers", "fleets": "workers",
    "nodes": "workers", "train": "submit FILE", "download": "artifacts get", "info": "show RUN",
}  # fmt: skip
# Looked for in a group → the command that does it.
_OTHER_NOUN: Final = {"control resume": "run --resume JOB"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One command of the table."""

    name: str
    target: str
    help: str
    panel: str


def examples(*lines: str) -> Callable[[F], F]:
    """Attach examples to a command; they are printed below its help and in the reference."""

    def mark(function: F) -> F:
        # On the function itself: Typer has no field for examples.
        setattr(function, _EXAMPLES, lines)
        return function

    return mark


def examples_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the examples of a command."""
    return getattr(function, _EXAMPLES, ())


def markup_mode() -> Literal["rich"] | None:
    """Return the help style: Rich frames on a terminal, plain text elsewhere."""
    return "rich" if sys.stdout.isatty() else None


def command_of(function: Callable[..., Any], name: str) -> Any:
    """Build a Typer command from a function."""
    app = typer.Typer(add_completion=False, rich_markup_mode=markup_mode())
    add(app, function, name)
    return typer.main.get_command(app)


def add(app: typer.Typer, function: Callable[..., Any], name: str) -> None:
    """Add a function to a Typer app, with its examples."""
    app.command(name, epilog=_epilog(examples_of(function)))(function)


def _epilog(lines: tuple[str, ...]) -> str | None:
    if not lines:
        return None
    shown = "\n".join(f"  {line}" for line in lines)
    if markup_mode() == "rich":
        # Rich reads square brackets as markup.
        return "Examples:\n" + shown.replace("[", "\\[")
    # Click keeps the line breaks of a paragraph that begins with \b.
    return f"Examples:\n\n\b\n{shown}"


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block."""
    # Pydantic compiles the patterns of models in a callback that drops exceptions: a KeyboardInterrupt there would be
    # lost, and the command would run on.
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # another handler is installed, or signals do not reach this thread
        return
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


class NounGroup(TyperGroup):
    """The commands of a noun, such as `workers`: `list` and `ls` are one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name or its other name."""
        found = super().get_command(ctx, cmd_name)
        return found or super().get_command(ctx, _SAME.get(cmd_name, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command to run; one that is elsewhere is an error that names it."""
        name = args[0] if args else ""
        if self.get_command(ctx, name) is None and (ours := _OTHER_NOUN.get(f"{self.name} {name}")):
            ctx.fail(f"No such command '{name}'. Use `tunefleet {ours}`.")
        return super().resolve_command(ctx, args)


class LazyGroup(TyperGroup):
    """Shows its table in help and completion; imports a command when it runs."""

    table: ClassVar[tuple[Entry, ...]] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the table's order."""
        return [entry.name for entry in self.table]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what help and completion need, without importing the command."""
        entry = self._entry(cmd_name)
        if entry is None:
            return None
        return TyperCommand(name=entry.name, help=entry.help, short_help=entry.help, rich_help_panel=entry.panel)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the plain help: one section per panel."""
        for panel in dict.fromkeys(entry.panel for entry in self.table):
            with formatter.section(panel):
                formatter.write_dl([(entry.name, entry.help) for entry in self.table if entry.panel == panel])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command to run.

        A command of another tool is an error that names ours.
        """
        args = [_SAME.get(args[0], args[0]), *args[1:]] if args and self._entry(args[0]) is None else args
        if args and self._entry(args[0]) is None and (ours := _ELSEWHERE.get(args[0])):
            ctx.fail(as_called(f"No such command '{args[0]}'. Use `tunefleet {ours}`."))
        # TyperGroup suggests similar names from this mapping.
        self.commands = {entry.name: self.get_command(ctx, entry.name) for entry in self.table}
        name, found, rest = super().resolve_command(ctx, args)
        return name, self.load(name) if found is not None and name else None, rest

    @classmethod
    def load(cls, name: str) -> Any:
        """Import a command by its name."""
        entry = next(entry for entry in cls.table if entry.name == name)
        module, _, attribute = entry.target.partition(":")
        with _interrupts_held():
            target = getattr(import_module(f"tunefleet.cli.{module}"), attribute)
        if isinstance(target, typer.Typer):
            target.rich_markup_mode = markup_mode()
            if not isinstance(target.info.cls, type):
                target.info.cls = NounGroup
            command: Any = typer.main.get_group(target)
        else:
            command = command_of(target, name)
        command.name = name
        return rename_in_help(command)

    def _entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.table if entry.name == name), None)


@examples(
    'eval "$(tunefleet completion bash)"',
    "tunefleet completion zsh > ~/.zfunc/_tunefleet",
    "tunefleet completion fish > ~/.config/fish/completions/tunefleet.fish",
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a shell completion script."""
    script = get_completion_script(prog_name="tunefleet", complete_var="_TUNEFLEET_COMPLETE", shell=shell)
    sys.stdout.write(script + "\n")
