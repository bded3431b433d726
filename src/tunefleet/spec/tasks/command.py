"""`taskType: command` and `python`: a user's command, or a function of the workflow file."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tunefleet.errors import InputError
from tunefleet.spec.base import Block, RelativePath, Text, as_list, is_url, many_wrong, wrong
from tunefleet.spec.expressions.lookup import Envelopes
from tunefleet.spec.options.environment import Variables
from tunefleet.spec.options.rows import LocalOrUrl
from tunefleet.spec.tasks.api_and_python import (
    Code,
    Emits,
    FunctionName,
    Inputs,
    PythonOutputSpec,
    Requirements,
    Runtime,
)
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.validation_errors import show

# Outputs that are recognized by name: an adapter and a model.
TRAINED: Final = ("final_lora", "final_model")
_MAX_WORDS: Final = 1000
_MAX_FILES: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RESERVED_NAMES: Final = frozenset({"responses.json", "results.json", "manifest.json", "logs", "artifacts"})


def _words(value: Any) -> Any:
    if isinstance(value, str):
        raise wrong(
            "must be a list, since no shell parses it", f"write [{', '.join(value.split()) or 'python, train.py'}]"
        )
    if isinstance(value, list | tuple):
        # Numbers in a YAML list are arguments too, such as `--epochs, 3`.
        return [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in value]
    return value


def _word(value: str) -> str:
    if "\0" in value:
        raise wrong("contains a NUL character")
    return value


def _folder(value: str) -> str:
    if is_url(value):
        raise wrong("is a URL", "use a folder on the submitting machine; put URLs into files")
    return value


def _outputs(value: dict[str, str]) -> dict[str, str]:
    faults = [
        (
            name,
            "is not a valid output name",
            "use letters, digits, dot, dash and underscore; reserved names are not allowed",
        )
        for name in value
        if not _NAME.fullmatch(name) or name in _RESERVED_NAMES
    ]
    if faults:
        raise many_wrong(faults)
    return value


class UploadSpec(Block):
    """`spec.checkpoint` of a command, which controls its own saves."""

    upload: bool = True
    """Upload the newest and the best checkpoint to the server during training, so that another worker can resume."""


class CommandSpec(BaseTaskSpec):
    """`taskType: command`: runs your own command; requires a worker started with `--allow-code`.

    A script that uses a Hugging Face Trainer can be paused, saved, resumed and monitored without code changes.
    """

    task_type: Literal["command"] = Field(default="command", alias="taskType")
    """`command`"""
    command: Annotated[
        tuple[Annotated[str, AfterValidator(_word)], ...],
        BeforeValidator(_words),
        Field(min_length=1, max_length=_MAX_WORDS),
    ]
    """Program and arguments, as a list; not parsed by a shell. `python` is the interpreter of the environment."""
    workdir: Annotated[LocalOrUrl, AfterValidator(_folder)] | None = None
    """Folder on the submitting machine, which is uploaded with the workflow; the command runs in a copy of it."""
    files: Annotated[tuple[LocalOrUrl, ...], BeforeValidator(as_list), Field(max_length=_MAX_FILES)] = ()
    """Files and folders that are uploaded with the workflow, or URLs that the worker downloads, such as
    `${stage.result.jsonl_export.url}`. They are placed in the working directory under their own names."""
    env: Variables = Field(default_factory=dict)
    """Environment variables; write secrets as `${secret:NAME}`."""
    environment: Text | None = None
    """Environment created with `tunefleet env create`, such as `axolotl`; default: the worker's environment."""
    outputs: Annotated[dict[str, RelativePath], AfterValidator(_outputs), Field(max_length=_MAX_FILES)] = Field(
        default_factory=dict
    )
    """Name → required file or folder, relative to the working directory. `final_lora` and `final_model` are treated as
    adapter and model, and are detected automatically."""
    checkpoint: UploadSpec = Field(default_factory=UploadSpec)
    """Upload of its checkpoints."""

    @property
    def environments(self) -> tuple[str, ...]:
        """The environment in `environment`, if set."""
        return () if self.environment is None else (self.environment,)

    @property
    def requires_code(self) -> bool:
        """Always true."""
        return True

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task, including those that are detected."""
        named = blocks.get("outputs") or {}
        archives = tuple(f"{name}.tar.gz" for name in TRAINED)
        return (*ALWAYS_LEFT, *named, *(name for name in TRAINED if name not in named), *archives, "checkpoints")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        names = [file_name(path) for path in blocks.get("files") or ()]
        for index, name in enumerate(names):
            # Two files with the same name would overwrite each other in the working directory.
            if name in names[:index]:
                found.append((f"files.{index}", f"has the same name as another file: {name}", "put them into workdir"))
        return found


def file_name(path: str) -> str:
    """Return a file's name in the working directory of a command: the last part of its path or URL."""
    return path.partition("?")[0].rstrip("/").rpartition("/")[2] or "file"


class PythonTaskSpec(BaseTaskSpec):
    """`taskType: python`: runs a Python function from the workflow file; requires a worker with `--allow-code`."""

    task_type: Literal["python"] = Field(default="python", alias="taskType")
    """`python`"""
    code: Code
    """Source code, at most 256 KiB. `${` in it is not replaced."""
    entrypoint: FunctionName = "main"
    """Function to call, with `inputs`: a mapping from each upstream stage to the folder of its result."""
    requirements: Requirements = ()
    """pip requirements; need `network: bridge`."""
    inputs: Inputs | None = None
    """Stages whose results the function gets; default: all dependencies of the task."""
    timeout_s: Runtime = Field(default=600.0, alias="timeoutSeconds")
    """Timeout of the function in seconds, at most one hour."""
    network: Literal["none", "bridge"] = "none"
    """Network access: `none` or `bridge`."""
    env: Variables = Field(default_factory=dict)
    """Environment variables; write secrets as `${secret:NAME}`."""
    emits: Emits = ()
    """Metrics that the function must return in `metrics` of its result."""
    output_limits: PythonOutputSpec = Field(default_factory=PythonOutputSpec, alias="pythonOutput")
    """Limits of the output."""
    upstream: Annotated[dict[Text, Text], Field(max_length=200)] = Field(default_factory=dict)
    """Stage → id of its task; set by the server when the stages have completed."""

    @property
    def requires_code(self) -> bool:
        """Always true."""
        return True

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        del blocks
        return (*ALWAYS_LEFT, "result.json", "metrics.json", "output")

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        if blocks.get("requirements") and blocks.get("network") == "none":
            found.append(("requirements", "cannot be installed without network", "add network: bridge"))
        code, name = blocks.get("code"), blocks.get("entrypoint")
        if isinstance(code, str) and isinstance(name, str) and name not in _functions(code):
            found.append(
                ("entrypoint", f"{show(name)} is not defined in the code", "use the name of a function that it defines")
            )
        return found


def _functions(code: str) -> set[str]:
    """Return the names that the code defines at module level."""
    found: set[str] = set()
    # Parsed, not executed: the code runs on the worker only.
    for node in ast.parse(code).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {each.asname or each.name for each in names}
    return found


def with_upstream(spec: Mapping[str, Any], envelopes: Envelopes) -> dict[str, Any]:
    """Return the spec of a ready task with the task ids of its inputs; other task types stay unchanged.

    Args:
        spec: The mapping below `spec`, without references.
        envelopes: Task → its stored result, for all dependencies.

    Raises:
        InputError: If an input is not a dependency of the task.
    """
    if spec.get("taskType") != "python":
        return dict(spec)
    wanted = [each if isinstance(each, str) else each.get("stage") for each in spec.get("inputs") or envelopes]
    missing = next((name for name in wanted if name not in envelopes), None)
    if missing is not None:
        message = f"spec.inputs names {missing!r}, which the task does not depend on."
        raise InputError(message, hint="Add it to dependsOn.")
    return {**spec, "upstream": {name: envelopes[name]["task_id"] for name in wanted if "task_id" in envelopes[name]}}
