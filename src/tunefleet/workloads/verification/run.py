"""The program of a verification: files → vocabulary → forward pass → the model with another tokenizer."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import psutil
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import MachineError, ModelError
from tunefleet.fsutil import write_file, write_folder
from tunefleet.spec.base import is_hub_name
from tunefleet.spec.tasks.verify_task import VerifyTaskSpec
from tunefleet.workloads.common import base_model, containment, hub_files, job
from tunefleet.workloads.common.base_model import Source, loading_error
from tunefleet.workloads.common.job import OpenedJob, open_task
from tunefleet.workloads.merging import vocabulary
from tunefleet.workloads.merging.lora import NEEDED
from tunefleet.workloads.merging.plan import Plan
from tunefleet.workloads.merging.safetensors_reader import is_weights
from tunefleet.workloads.merging.skeleton import build
from tunefleet.workloads.training.model.hardware import Hardware, choose, inspect
from tunefleet.workloads.verification import model_files
from tunefleet.workloads.verification.model_files import CONFIGS, SPECIAL, Files, Tokens

_TEXTS: Final = 2
_LENGTH: Final = 16
_SEED: Final = 20
_LOADING_FACTOR: Final = 1.3
"""Memory of a model while it is loaded, relative to its weights."""
_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_FILES_ONLY: Final = "check the files only (model.verify: files of a campaign, verify.forward: false of a task)"
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
    model_files.check_special(Path(source.path), rows)
    wanted = spec.model.tokenizer
    given = inputs.get(POINTER)
    tokenizer_source = source if wanted is None else locate(wanted, given, task.workspace)
    tokens = model_files.check_tokenizer(tokenizer_source, rows, chat=spec.verify.chat_template)
    ran = None
    if spec.verify.forward:
        _tell(task, "forward", "Loading the weights for one forward pass.")
        ran = _run_forward(source, weights, tokens.highest, on_cpu=spec.enforce_cpu)
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


def _run_forward(source: Source, weights: Files, highest: int, *, on_cpu: bool) -> dict[str, Any]:
    """Load a model, and run it on a few tokens."""
    hardware = Hardware("cpu") if on_cpu else inspect()
    kernels = choose(hardware)
    _require_memory(weights, hardware, kernels.compute)
    try:
        model = _loaded(source, hardware, kernels.compute)
        logits = _logits(model, highest)
    except torch.cuda.OutOfMemoryError as error:
        raise MachineError(
            f"{source.identifier} does not fit into the memory of the GPU.",
            hint=f"Set TUNEFLEET_CAMPAIGN_CPU=true to use the CPU, use a larger GPU, or {_FILES_ONLY}.",
        ) from error
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(
            f"{source.identifier} returns values that are not finite.",
            hint="Its weights are damaged; download it again.",
        )
    # Weights of zeros load without an error.
    if float(logits.std()) == 0:
        raise ModelError(f"{source.identifier} returns constant logits.", hint="Its weights are damaged.")
    logger.info("%s ran in %s on %s", source.identifier, kernels.compute, hardware.device)
    return {"positions": logits[..., 0].numel(), "device": hardware.device, "dtype": kernels.compute}


def _require_memory(weights: Files, hardware: Hardware, compute: str) -> None:
    needed = int(weights.parameters * _BYTES[compute] * _LOADING_FACTOR)
    available, where = psutil.virtual_memory().available, "memory"
    if hardware.device == "cuda":
        available = sum(torch.cuda.mem_get_info(each)[0] for each in range(torch.cuda.device_count()))
        where = "memory of the GPU"
    if needed > available:
        way = (
            "Use a worker with more"
            if hardware.device == "cpu"
            else "Set TUNEFLEET_CAMPAIGN_CPU=true, use a larger GPU"
        )
        raise MachineError(
            f"The forward pass needs about {needed / 1e9:.1f} GB of {where}, but {available / 1e9:.1f} GB are free.",
            hint=f"{way}, or {_FILES_ONLY}.",
        )


def _loaded(source: Source, hardware: Hardware, compute: str) -> Any:
    several = hardware.device == "cuda" and torch.cuda.device_count() > 1
    places = {"device_map": "auto" if several else {"": 0}} if hardware.device == "cuda" else {}
    try:
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            dtype=getattr(torch, compute),
            output_loading_info=True,
            **places,
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, UnpicklingError) as error:
        raise loading_error("model", source, error) from error
    for name in ("missing_keys", "mismatched_keys"):
        wrong = sorted(map(str, loading_info.get(name) or ()))
        if wrong:
            what = "lack" if name == "missing_keys" else "have in another shape"
            raise ModelError(
                f"The files of {source.identifier} {what} {wrong[0]}"
                + (f" and {len(wrong) - 1} more." if wrong[1:] else "."),
                hint="They are incomplete, or belong to another config.json.",
            )
    return model.to("mps") if hardware.device == "mps" else model


@torch.no_grad()
def _logits(model: Any, highest: int) -> torch.Tensor:
    model.eval()
    generator = torch.Generator().manual_seed(_SEED)
    tokens = torch.randint(0, highest + 1, (_TEXTS, _LENGTH), generator=generator)
    found: torch.Tensor = model(input_ids=tokens.to(model.device)).logits.float()
    return found
