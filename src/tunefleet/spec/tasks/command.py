"""`taskType: command`: runs a command of the user's, steered like any other training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tunefleet.spec.base import Block, RelativePath, Text, as_list, is_url, many_wrong, wrong
from tunefleet.spec.options.environment import Variables
from tunefleet.spec.options.rows import LocalOrUrl
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults

# Outputs that are recognised by their name: an adapter and a model.
TRAINED: Final = ("final_lora", "final_model")
_MAX_WORDS: Final = 1000
_MAX_FILES: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TAKEN: Final = frozenset({"responses.json", "results.json", "manifest.json", "logs", "artifacts"})


def _words(value: Any) -> Any:
    if isinstance(value, str):
        raise wrong("must be a list: no shell splits it", f"write [{', '.join(value.split()) or 'python, train.py'}]")
    if isinstance(value, list | tuple):
        return [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in value]
    return value


def _word(value: str) -> str:
    if "\0" in value:
        raise wrong("holds a character that no command can have")
    return value


def _folder(value: str) -> str:
    if is_url(value):
        raise wrong("is an address", "name a folder on the machine that submits; addresses belong into files")
    return value


def _outputs(value: dict[str, str]) -> dict[str, str]:
    faults = [
        (name, "cannot be the name of an output", "letters, digits, dot, dash and underscore")
        for name in value
        if not _NAME.fullmatch(name) or name in _TAKEN
    ]
    if faults:
        raise many_wrong(faults)
    return value


class UploadSpec(Block):
    """`spec.checkpoint` of a command, which saves where and when it likes."""

    upload: bool = True
    """Send the newest and the best checkpoint to the server while it trains, so that another worker can go on."""


class CommandSpec(BaseTaskSpec):
    """`taskType: command`: runs a command of yours; needs a worker with `--allow-code`.

    Whatever builds a Hugging Face Trainer in it can be paused, saved, resumed and watched, without a changed
    line in it.
    """

    task_type: Literal["command"] = Field(default="command", alias="taskType")
    """`command`"""
    command: Annotated[
        tuple[Annotated[str, AfterValidator(_word)], ...],
        BeforeValidator(_words),
        Field(min_length=1, max_length=_MAX_WORDS),
    ]
    """The program and its arguments, as a list. No shell reads it; `python` is that of the environment."""
    workdir: Annotated[LocalOrUrl, AfterValidator(_folder)] | None = None
    """A folder on the machine that submits; it travels with the submit, and the command runs in a copy of it."""
    files: Annotated[tuple[LocalOrUrl, ...], BeforeValidator(as_list), Field(max_length=_MAX_FILES)] = ()
    """Files and folders that travel with the submit, or addresses that the worker fetches, such as
    `${stage.result.jsonl_export.url}`. They lie, under their own names, where the command runs."""
    env: Variables = Field(default_factory=dict)
    """Variables of its environment; a secret is written `${secret:NAME}`."""
    environment: Text | None = None
    """An environment of `tunefleet env create`, such as `axolotl`; by default the one that the worker runs in."""
    outputs: Annotated[dict[str, RelativePath], AfterValidator(_outputs), Field(max_length=_MAX_FILES)] = Field(
        default_factory=dict
    )
    """Name → file or folder, from where the command runs, that it must leave; `final_lora` and `final_model` are taken
    for what they are, and are found by themselves if the command leaves one."""
    checkpoint: UploadSpec = Field(default_factory=UploadSpec)
    """What becomes of its checkpoints."""

    @property
    def environments(self) -> tuple[str, ...]:
        """The one that it names."""
        return () if self.environment is None else (self.environment,)

    @property
    def requires_code(self) -> bool:
        """It does."""
        return True

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves: its outputs, and what may be found."""
        named = blocks.get("outputs") or {}
        archives = tuple(f"{name}.tar.gz" for name in TRAINED)
        return (*ALWAYS_LEFT, *named, *(name for name in TRAINED if name not in named), *archives, "checkpoints")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        names = [file_name(path) for path in blocks.get("files") or ()]
        for index, name in enumerate(names):
            if name in names[:index]:
                found.append(
                    (f"files.{index}", f"has the same name as another file: {name}", "put them into a workdir")
                )
        return found


def file_name(path: str) -> str:
    """Return the name under which a file lies where a command runs: the last part of its path or address."""
    return path.partition("?")[0].rstrip("/").rpartition("/")[2] or "file"
