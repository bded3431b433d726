"""A verification from beginning to end: files → vocabulary → forward pass → the model with another tokenizer."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig

from tunefleet.errors import ModelError
from tunefleet.spec.tasks.verify_task import VerifyTaskSpec
from tunefleet.workloads.common import base_model, hub_files, job
from tunefleet.workloads.common.base_model import Source, unloadable
from tunefleet.workloads.common.job import Opened, open_task
from tunefleet.workloads.common.outputs import write_file
from tunefleet.workloads.merging.skeleton import build
from tunefleet.workloads.merging.source_models import NEEDED
from tunefleet.workloads.verification import forward, model_files, tokenizer, tokenizer_swap

logger = logging.getLogger(__name__)

PRODUCT: Final = "final_model"
_SNAPSHOTS: Final = "snapshots"
"""Folder of the hub's cache whose folders have the name of a commit."""


def run(folder: Path) -> None:
    """Run the verification of a job folder.

    Raises:
        ModelError: If the model is not whole, or does not go with its tokenizer.
        UnreachableError: If the hub does not answer.
        MachineError: If this machine is too small for the forward pass.
    """
    job.libraries()
    task = open_task(folder, VerifyTaskSpec)
    write_file(task.folder.responses_json, json.dumps(_verified(task), indent=1).encode())


def _verified(task: Opened[VerifyTaskSpec]) -> dict[str, Any]:
    spec, inputs = task.spec, task.job.inputs
    _tell(task, "files", "The files of the model are looked at.")
    source = _here(task)
    weights = model_files.check(Path(source.path))
    rows = _rows(source, weights)
    tokenizer.check_special(Path(source.path), rows)
    wanted = spec.model.tokenizer
    given = inputs.get(tokenizer_swap.POINTER)
    whose = source if wanted is None else tokenizer_swap.locate(wanted, given, task.workspace)
    words = tokenizer.check(whose, rows, chat=spec.verify.chat_template)
    ran = None
    if spec.verify.forward:
        _tell(task, "forward", "The weights are loaded for one forward pass.")
        ran = forward.run(source, weights, words.highest, on_cpu=spec.enforce_cpu)
    changed = None
    if wanted is not None:
        changed = tokenizer_swap.moved(Path(source.path), words)
        if changed:
            text = f"{changed} tokens of the model's own tokenizer mean something else in that of {wanted}."
            task.journal.event("verify.moved", text, "warning")
        _tell(task, "tokenizer", f"The model gets the tokenizer of {wanted}.")
        tokenizer_swap.write(Path(source.path), task.folder.root / PRODUCT, whose, words)
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
            "tokens": words.count, "rows": rows, "tokenizer_of": whose.identifier, "moved": changed,
            "chat_template": words.chat_template,
        },
        "forward": ran,
    }  # fmt: skip


def _here(task: Opened[VerifyTaskSpec]) -> Source:
    """Find the model, and bring it here if it is on the hub."""
    named = task.spec.model.source
    source = base_model.named(named, task.job.inputs, task.workspace, trust_remote_code=named.trust_remote_code)
    if Path(source.path).is_dir():
        return source
    return replace(source, path=str(hub_files.fetched(source.path, named.revision, NEEDED)), revision=None)


def _rows(source: Source, weights: model_files.Files) -> int:
    """Return how many tokens the model has embeddings for: in its files and in its config, which must agree."""
    try:
        config = AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise unloadable("model", source, error) from error
    said: int | None = getattr(config.get_text_config(), "vocab_size", None)
    name = build(source).embedding
    _, _, short = name.partition(".")
    stored = model_files.embedding_rows(weights, (name, short))
    if said is not None and stored is not None and said != stored:
        raise ModelError(
            f"The config.json of {source.identifier} says vocab_size: {said}, and its embeddings have {stored} rows.",
            hint="The files are of different models.",
        )
    rows = stored or said
    if rows is None:
        raise ModelError(f"Nobody can tell how many tokens {source.identifier} has embeddings for.")
    return rows


def _commit(source: Source) -> str | None:
    path = Path(source.path)
    return path.name if path.parent.name == _SNAPSHOTS else None


def _tell(task: Opened[VerifyTaskSpec], phase: str, text: str) -> None:
    task.journal.event(f"verify.{phase}", text)
    task.journal.progress(phase)
