"""The program of a verification: files → vocabulary → forward pass → the model with another tokenizer."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig, PreTrainedTokenizerBase

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import ModelError
from tunefleet.fsutil import write_file, write_folder
from tunefleet.spec.base import is_hub_name
from tunefleet.spec.tasks.verify_task import VerifyTaskSpec
from tunefleet.workloads.common import base_model, containment, hub_files, job
from tunefleet.workloads.common.base_model import Source, loading_error
from tunefleet.workloads.common.job import OpenedJob, open_task
from tunefleet.workloads.merging import vocabulary
from tunefleet.workloads.merging.plan import Plan
from tunefleet.workloads.merging.safetensors_reader import is_weights
from tunefleet.workloads.merging.skeleton import build
from tunefleet.workloads.merging.source_models import NEEDED
from tunefleet.workloads.verification import forward, model_files, tokenizer
from tunefleet.workloads.verification.tokenizer import CONFIGS, SPECIAL, Tokens

logger = logging.getLogger(__name__)

PRODUCT: Final = "final_model"
_SNAPSHOTS: Final = "snapshots"
"""Folder in the Hub's cache whose subfolders are named by commit."""
POINTER: Final = "model.tokenizer"
_WANTED: Final = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""Files that are downloaded for a tokenizer; no weights."""


def run(folder: Path) -> None:
    """Run the verification of a job folder.

    Raises:
        ModelError: If the model is incomplete, or does not match its tokenizer.
        UnreachableError: If the Hub does not respond.
        MachineError: If this machine is too small for the forward pass.
    """
    job.quiet_libraries()
    task = open_task(folder, VerifyTaskSpec)
    write_file(task.folder.responses_json, json.dumps(_verified(task), indent=1).encode())


def _verified(task: OpenedJob[VerifyTaskSpec]) -> dict[str, Any]:
    spec, inputs = task.spec, task.job.inputs
    _tell(task, "files", "Checking the model's files.")
    source = _local_source(task)
    weights = model_files.check(Path(source.path))
    rows = _rows(source, weights)
    # Before the forward pass, which takes far longer.
    tokenizer.check_special(Path(source.path), rows)
    wanted = spec.model.tokenizer
    given = inputs.get(POINTER)
    tokenizer_source = source if wanted is None else locate(wanted, given, task.workspace)
    tokens = tokenizer.check(tokenizer_source, rows, chat=spec.verify.chat_template)
    ran = None
    if spec.verify.forward:
        _tell(task, "forward", "Loading the weights for one forward pass.")
        ran = forward.run(source, weights, tokens.highest, on_cpu=spec.enforce_cpu)
    changed = None
    if wanted is not None:
        changed = moved(Path(source.path), tokens)
        if changed:
            text = f"{changed} tokens of the model's own tokenizer have a different id in that of {wanted}."
            task.journal.event("verify.moved", text, "warning")
        _tell(task, "tokenizer", f"Replacing the tokenizer with that of {wanted}.")
        write(Path(source.path), task.folder.root / PRODUCT, tokenizer_source, tokens)
    return {
        "ok": True,
        "task_id": task.job.task_id,
        "model_name": spec.model.source.identifier,
        "commit": _commit(source),
        "files": [each.path.name for each in weights.files],
        "size_bytes": weights.size_bytes,
        "parameters": weights.parameters,
        "dtypes": weights.dtypes,
        "vocabulary": {
            "tokens": tokens.count, "rows": rows, "tokenizer_of": tokenizer_source.identifier, "moved": changed,
            "chat_template": tokens.chat_template,
        },
        "forward": ran,
    }  # fmt: skip


def _local_source(task: OpenedJob[VerifyTaskSpec]) -> Source:
    """Find the model, and download it if it is on the Hub."""
    named = task.spec.model.source
    source = base_model.locate_named(named, task.job.inputs, task.workspace, trust_remote_code=named.trust_remote_code)
    if Path(source.path).is_dir():
        return source
    return replace(source, path=str(hub_files.fetched(source.path, named.revision, NEEDED)), revision=None)


def _rows(source: Source, weights: model_files.Files) -> int:
    """Return the number of token embeddings, from the files and the config, which must agree."""
    try:
        config = AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise loading_error("model", source, error) from error
    config_size: int | None = getattr(config.get_text_config(), "vocab_size", None)
    name = build(source).embedding
    _, _, short = name.partition(".")
    stored = model_files.embedding_rows(weights, (name, short))
    if config_size is not None and stored is not None and config_size != stored:
        raise ModelError(
            f"The config.json of {source.identifier} has vocab_size: {config_size}, its embeddings have {stored} rows.",
            hint="The files are of different models.",
        )
    rows = stored or config_size
    if rows is None:
        raise ModelError(f"The number of token embeddings of {source.identifier} is unknown.")
    return rows


def _commit(source: Source) -> str | None:
    path = Path(source.path)
    return path.name if path.parent.name == _SNAPSHOTS else None


def _tell(task: OpenedJob[VerifyTaskSpec], phase: str, text: str) -> None:
    task.journal.event(f"verify.{phase}", text)
    task.journal.progress(phase)


def locate(name: str, given: str | None, workspace: Path) -> Source:
    """Find the tokenizer that replaces the model's own.

    Raises:
        UnreachableError: If the Hub does not respond.
    """
    if given is not None:
        folder = only_folder(unpacked_path(Path(given), workspace))
    elif is_hub_name(name):
        folder = hub_files.fetched(name, patterns=_WANTED)
    else:
        return base_model.locate(name, None)
    containment.check_model(folder)
    return Source(name, str(folder))


def moved(base: Path, tokens: Tokens) -> int | None:
    """Return how many tokens of a model's own tokenizer have another id in the new one; None if it has no tokenizer."""
    try:
        own = base_model.load_tokenizer(Source(base.name, str(base)))
    except ModelError:
        return None  # it has no readable one, which may be the reason for the new one
    ids: dict[str, int] = tokens.tokenizer.get_vocab()
    return sum(ids.get(token) != at for token, at in own.get_vocab().items())


def write(base: Path, target: Path, tokenizer: Source, tokens: Tokens) -> None:
    """Write the model with its new tokenizer, atomically."""
    replacement = vocabulary.Vocabulary(Path(tokenizer.path), tokenizer.identifier, tokens.count)
    nothing = Plan((), {}, 0, (), (False, False), 0)

    def fill(folder: Path) -> None:
        vocabulary.carry(base, folder, replacement, nothing)
        for path in sorted(base.iterdir()):
            if (
                path.is_file()
                and is_weights(path.name)
                and path.name.endswith((".safetensors", ".safetensors.index.json"))
            ):
                shutil.copyfile(path, folder / path.name)
        for name in CONFIGS:
            if (folder / name).is_file():
                _name_special(folder / name, tokens.tokenizer)

    write_folder(target, fill)


def _name_special(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the special token ids of the new tokenizer in a file; the old ids now mean other tokens."""
    config: dict[str, Any] = json.loads(path.read_bytes())
    for block in (config, config.get("text_config")):
        if isinstance(block, dict):
            block |= {key: getattr(tokenizer, key) for key in SPECIAL if block is config or key in block}
    path.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
