"""Write every page that repeats code: settings, commands, exit codes, workflow documents; `--check` only compares.

A variable or a code is described once, in the string below it.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scripts import error_reference, generate_reference, man_page, metrics_reference, sdk_reference, write_openapi
from tunefleet import settings
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples_of
from tunefleet.cli.main import Root

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = {
    "ProcessSettings": "Every process",
    "ClientSettings": "CLI and SDK",
    "RedisSettings": "Server and worker",
    "TracingSettings": "Server, worker and agent: tracing",
    "ServerSettings": "Server",
    "TlsSettings": "Server and agent: HTTPS",
    "NodeSettings": "Server and worker: Slurm and Ray nodes",
    "ClusterSettings": "Server: Slurm and Ray",
    "SharedGpuSettings": "Processes that run jobs",
    "WorkerSettings": "Worker",
    "SecretSettings": "Worker: secrets",
    "CacheSettings": "Worker: Hugging Face",
    "TransferSettings": "Worker: file transfers",
    "EngineSettings": "Worker: loaded models",
    "ApiSettings": "Worker: `api` tasks",
    "PublishSettings": "CLI: `tunefleet push`",
    "CampaignSettings": "Server: campaigns",
    "TrackingSettings": "Server: experiment trackers",
    "AgentSettings": "Agent",
}


class Variable(NamedTuple):
    """One environment variable."""

    name: str
    default: str
    meaning: str
    aliases: tuple[str, ...] = ()


def _docstrings(cls: type) -> dict[str, str]:
    """Return the string below each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        target = field.target if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [None])[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target.id] = " ".join(str(below.value.value).split())
    return found


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined or value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def _names(field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return [str(choice) for choice in alias.choices]
    return [str(alias)] if alias else []


def variables() -> Iterator[tuple[str, list[Variable]]]:
    """Yield each process's title with its own variables."""
    for class_name, title in PROCESSES.items():
        cls = getattr(settings, class_name)
        meanings = _docstrings(cls)
        own = [
            Variable(names[0], _default(cls.model_fields[field]), meanings.get(field, ""), tuple(names[1:]))
            for field in inspect.get_annotations(cls)
            if field in cls.model_fields and (names := _names(cls.model_fields[field]))
        ]
        yield title, own


def _aliases() -> dict[str, tuple[str, ...]]:
    """Return the aliases of each variable; two processes may accept different ones."""
    found: dict[str, tuple[str, ...]] = {}
    for _, own in variables():
        for each in own:
            if each.aliases:
                found[each.name] = tuple(dict.fromkeys((*found.get(each.name, ()), *each.aliases)))
    return found


def configuration_page() -> str:
    """Return the text of `docs/reference/configuration.md`."""
    parts = [
        "# Configuration\n",
        "<!-- Written by `make docs` from src/tunefleet/settings; edit the docstrings there. -->\n",
        "Every process reads its settings once, when it starts. Command-line options take precedence, followed by",
        "environment variables and then a `.env` file in the working directory. An invalid value stops the process",
        "with an error that names the variable and the value. `.env.example` lists all settings.\n",
        "Only these commands read `.env`: `up`, `worker`, `agent`, `campaign`, `db`, `backup`, `restore`,",
        "`verify-store`, `doctor` and `uninstall`. The file may come from an untrusted archive, so it is restricted:\n",
        "- It cannot set the server, API key or certificates used by client commands and the SDK.",
        "- It cannot set a URL that a key from the environment would be sent to, or a program to run",
        "  (`TUNEFLEET_ENVS_DIR`, `TUNEFLEET_ARCHIVE_PIGZ_BIN` and similar).",
        "- Its values cannot refer to other variables, and it cannot enable `TUNEFLEET_ALLOW_CODE`.\n",
        "To ignore the file, set `TUNEFLEET_DOTENV=false` in the environment.\n",
        "Booleans are `true` or `false`. Variables ending in `_S` are in seconds, those ending in `_BYTES` in bytes.",
        "Variables of other projects, such as `HF_TOKEN`, keep their names.\n",
    ]
    for title, own in variables():
        parts += [f"## {title}\n", "| Variable | Default | Meaning |", "|---|---|---|"]
        parts += [f"| `{v.name}` | {f'`{v.default}`' if v.default else '–'} | {v.meaning} |" for v in own]
        parts.append("")
    parts += [
        "## Accepted aliases\n",
        "These names from compatible systems also work. If both names are set in the same place, the one in the first",
        "column is used, with a warning. Under either name, the environment takes precedence over `.env`.\n",
        "| Variable | Also accepted |",
        "|---|---|",
    ]
    parts += [f"| `{name}` | {', '.join(f'`{alias}`' for alias in aliases)} |" for name, aliases in _aliases().items()]
    return "\n".join([*parts, ""])


def env_example() -> str:
    """Return the text of `.env.example`."""
    parts = [
        "# All variables that Tunefleet reads. Copy this file to `.env` and uncomment what you need.",
        "# Written by `make docs` from src/tunefleet/settings.",
    ]
    for title, own in variables():
        parts += ["", f"# ---- {title} ----"]
        for variable in own:
            parts += ["", *textwrap.wrap(variable.meaning, 118, initial_indent="# ", subsequent_indent="# ")]
            parts.append(f"#{variable.name}={variable.default}")
    return "\n".join(parts) + "\n"


def exit_codes_page() -> str:
    """Return the text of `docs/reference/exit-codes.md`."""
    meanings = _docstrings(ExitCode)
    parts = [
        "# Exit codes\n",
        "<!-- Written by `make docs` from src/tunefleet/cli/exit_codes.py; edit the docstrings there. -->\n",
        "The exit codes of `tunefleet` commands. With `--json` an error is also an object on standard error.\n",
        "`tunefleet run` returns the exit code of its command, or 128 plus the number of the signal that ended it.",
        "It returns a code of this table only if the command could not be started.\n",
        "| Code | Name | Meaning |",
        "|---|---|---|",
        *(f"| {code.value} | `{code.name}` | {meanings[code.name]} |" for code in ExitCode),
    ]
    return "\n".join(parts) + "\n"


def _usage(command: Any, words: str) -> Iterator[str]:
    """Yield the lines of one command: heading, meaning, options, examples; those of its sub-commands after them."""
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _usage(below, f"{words} {name}")
        return
    yield f"### {words}\n"
    yield f"`{' '.join([words, *man_page.arguments(command)])}`\n"
    yield inspect.cleandoc(command.help or "").partition("\f")[0].strip() + "\n"
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    for option in options:
        meaning = " ".join(str(option.help or "").split())
        yield f"- `{', '.join([*option.opts, *option.secondary_opts])}`: {meaning}"
    if options:
        yield ""
    lines = examples_of(command.callback)
    if lines:
        yield "\n".join(["```", *lines, "```\n"])


def command_line_page() -> str:
    """Return the text of `docs/reference/command-line.md`."""
    parts = [
        "# Command line\n",
        "<!-- Written by `make docs` from src/tunefleet/cli; edit the docstrings there. -->\n",
        "Every command has `--help`, and most have `--json`. Wherever an id is expected, a unique prefix is enough.",
        "`list` and `ls` are interchangeable. See also the [exit codes](exit-codes.md).\n",
    ]
    panel = ""
    for entry in Root.table:
        if entry.panel != panel:
            panel = entry.panel
            parts.append(f"## {panel}\n")
        parts += _usage(Root.load(entry.name), f"tunefleet {entry.name}")
    return "\n".join(parts).rstrip("\n") + "\n"


def pages() -> dict[Path, str]:
    """Return what each generated file should hold."""
    return {
        ROOT / "docs/reference/configuration.md": configuration_page(),
        ROOT / "docs/reference/command-line.md": command_line_page(),
        ROOT / "docs/reference/exit-codes.md": exit_codes_page(),
        ROOT / "docs/reference/errors.md": error_reference.page(),
        ROOT / ".env.example": env_example(),
        ROOT / "docs/reference/sdk.md": sdk_reference.page(),
        ROOT / "docs/reference/metrics.md": metrics_reference.page(),
        man_page.PATH: man_page.page(),
        write_openapi.PATH: write_openapi.text(),
        **generate_reference.pages(),
    }


def main(arguments: list[str]) -> int:
    """Write the files, or say which are out of date; return the exit code."""
    stale = [
        (path, text) for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
