"""The program of a merge: vocabulary → plan → weights, file by file → verification → GGUF.

May be killed at any time and relaunched in the same folder: complete files are kept, by their digest.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tunefleet.artifacts import manifest_digest, scan
from tunefleet.errors import InputError, MachineError
from tunefleet.fsutil import write_file, write_folder
from tunefleet.schemas.api import FileEntry
from tunefleet.spec.tasks.merge_task import MergeTaskSpec
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.common import job
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.common.job import OpenedJob, open_task
from tunefleet.workloads.merging import (
    check,
    combine,
    gguf,
    gguf_check,
    lora,
    modelfile,
    plan,
    safetensors_reader,
    shard_writer,
    skeleton,
    vocabulary,
)
from tunefleet.workloads.merging.lora import Adapter, open_adapter
from tunefleet.workloads.training.launch import Clock

logger = logging.getLogger(__name__)

_WORK: Final = ".merge"


@dataclass(frozen=True, slots=True)
class Run(OpenedJob[MergeTaskSpec]):
    """One launch of a merge."""

    clock: Clock = field(default_factory=Clock)

    @property
    def product(self) -> Path:
        """The folder that is delivered."""
        return self.folder.root / self.spec.product

    @property
    def work(self) -> Path:
        """The folder of complete files."""
        return self.folder.root / _WORK

    def tell(self, phase: str, text: str, data: dict[str, Any] | None = None) -> None:
        """Report the next phase in the task's history."""
        self.journal.event(f"merge.{phase}", text, "info", data)
        self.journal.progress(phase)


def run(folder: Path) -> None:
    """Run the merge of a job folder.

    Raises:
        InputError: If base and adapters do not match, or use a feature that cannot be merged exactly.
        MachineError: If this machine has no converter for the requested file, or not enough memory.
    """
    job.quiet_libraries()
    task = open_task(folder, MergeTaskSpec)
    result = _merge(Run(task.job, task.spec, task.folder, task.session))
    write_file(task.folder.responses_json, json.dumps(result, indent=1).encode())
    shutil.rmtree(folder / _WORK, ignore_errors=True)


def _merge(run: Run) -> dict[str, Any]:
    spec = run.spec
    # First: a missing converter must fail before hours of merging.
    converter = None if spec.merge.gguf is None else gguf.find(spec.merge.gguf)
    with run.clock.part("reading"):
        source = lora.locate_merge_base(spec, run.job.inputs, run.workspace)
        adapters = [
            open_adapter(
                lora.locate_adapter(index, each, run.job.inputs, run.workspace),
                each.share,
                lora.label_of(index, each),
            )
            for index, each in enumerate(spec.model.adapters)
        ]
        digests = [_digest(each.folder, {}) for each in adapters]
        base_skeleton = skeleton.build(source)
    made = _into_base if spec.merge.into == "base" else _into_adapter
    report = made(run, source, adapters, digests, base_skeleton)
    converted = ollama = None
    if converter is not None:
        converted = _convert(run, converter)
        converted["check"] = _answers(run, converter, source, Path(converted["path"]), report["verification"])
        ollama = modelfile.compose(run.product, converted["name"], source)
    return {
        "task_id": run.job.task_id,
        "merged": True,
        "into": spec.merge.into,
        "model_name": spec.model.source.identifier,
        "output_dir": str(run.folder.root),
        f"{spec.product}_path": str(run.product),
        **report,
        "gguf": converted,
        "modelfile": ollama,
        "timings": run.clock.seconds(),
    }


def _convert(run: Run, converter: gguf.Converter) -> dict[str, Any]:
    wanted, name = run.spec.merge.gguf, run.spec.gguf_name
    assert wanted is not None
    assert name is not None
    run.tell("converting", f"Converting the model to {name}.")
    with run.clock.part("gguf"):
        converted = gguf.convert(run.product, run.folder.root / name, wanted, converter, run.job.launch)
    if count := converted["fallback_tensors"]:
        text = f"The shape of {count} tensors does not allow {wanted.type}; they have more bits per weight."
        run.journal.event("merge.fallback", text, "warning")
    return converted


def _answers(
    run: Run, converter: gguf.Converter, source: Source, file: Path, verified: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Compare the answers of the GGUF file, if the merge was verified too: it needs as much memory."""
    if verified is None:
        return None
    if not converter.server:
        text = "The answers of the GGUF file are not checked: the worker has no llama-server."
        run.journal.event("merge.unchecked", f"{text} {gguf.HINT}", "warning")
        return None
    run.tell("checking", "llama.cpp answers prompts with the GGUF file.")
    with run.clock.part("gguf_check"):
        checked = gguf_check.compare(run.product, file, converter.server, source)
    same = checked["same_tokenization"] and not checked["differences"]
    run.journal.event("merge.checked", checked["summary"], "info" if same else "warning")
    return checked


def _into_base(
    run: Run, source: Source, adapters: Sequence[Adapter], digests: Sequence[str], base_skeleton: skeleton.Skeleton
) -> dict[str, Any]:
    base = Path(source.path)
    vocab = vocabulary.choose(base, adapters)
    files = safetensors_reader.model_files(base)
    merged = plan.make(files, base_skeleton, adapters, run.spec.merge.dtype)
    vocabulary.check(vocab, merged.rows)
    _tell_templates(run, vocab)
    whole_bytes = sum(tensor.size_bytes for file in files for tensor in file.tensors)
    parameters = sum(_numbers(tensor) for file in files for tensor in file.tensors)
    verifying = _should_verify(run, parameters)
    change = "1 adapter changes" if len(adapters) == 1 else f"{len(adapters)} adapters change"
    text = f"{change} {merged.merged} of {sum(len(f.tensors) for f in files)} tensors."
    run.tell("merging", text, {"bytes": whole_bytes})
    with run.clock.part("merging"):
        written = shard_writer.write(merged, digests, run.work, _reporter(run.journal, whole_bytes))
    with run.clock.part("saving"):
        write_folder(run.product, lambda folder: _assemble(run, base, folder, vocab, merged, written))
    comparison = None
    if verifying:
        run.tell("verifying", "A forward pass compares the merged model with base and adapters.")
        with run.clock.part("verification"):
            dtype = next(
                p.dtype for shard in merged.shards for p in shard.pieces if p.dtype in safetensors_reader.FLOATS
            )
            comparison = _verified(run, lambda: check.into_base(source, adapters, run.product, merged.rows, dtype))
    return {
        "parents": _parents(run, base, written, adapters, digests),
        "tensors": {
            "merged": merged.merged,
            "replaced": list(merged.replaced),
            "total": sum(len(shard.pieces) for shard in merged.shards),
        },
        "shards": [
            {"name": each.name, "digest": each.digest, "size_bytes": each.size_bytes, "kept": each.kept}
            for each in written
        ],
        "dtypes": sorted({piece.dtype for shard in merged.shards for piece in shard.pieces}),
        "parameters": parameters,
        "vocabulary": {"tokens": vocab.tokens, "rows": merged.rows, "tokenizer_of": vocab.origin},
        "tied_embeddings": {"base": merged.tied[0], "merged": merged.tied[1]},
        "verification": comparison,
    }


def _into_adapter(
    run: Run, source: Source, adapters: Sequence[Adapter], digests: Sequence[str], base_skeleton: skeleton.Skeleton
) -> dict[str, Any]:
    options = run.spec.merge
    vocab = vocabulary.choose(Path(source.path), adapters)
    combine.check(adapters, base_skeleton, options)
    verifying = _should_verify(run, base_skeleton.parameters)
    _tell_templates(run, vocab)
    run.tell("merging", f"Combining {len(adapters)} adapters by {options.method}.")
    about: dict[str, Any] = {}

    def fill(folder: Path) -> None:
        about.update(combine.combine(adapters, base_skeleton, options, folder))
        vocabulary.carry_tokenizer(vocab, folder)

    with run.clock.part("merging"):
        write_folder(run.product, fill)
    comparison = None
    if verifying:
        run.tell("verifying", "A forward pass runs base and merged adapter.")
        with run.clock.part("verification"):
            comparison = _verified(run, lambda: check.into_adapter(source, run.product))
    return {
        "method": options.method,
        "parents": _parents(run, Path(source.path), None, adapters, digests),
        **about,
        "vocabulary": {"tokens": vocab.tokens, "tokenizer_of": vocab.origin},
        "verification": comparison,
    }


def _assemble(
    run: Run,
    base: Path,
    folder: Path,
    vocab: vocabulary.Vocabulary,
    merged: plan.Plan,
    written: Sequence[shard_writer.Written],
) -> None:
    vocabulary.carry(base, folder, vocab, merged)
    for each in written:
        # A hard link: the complete file stays available if this step is interrupted.
        os.link(run.work / each.name, folder / each.name)
    if len(written) > 1:
        index = {
            "metadata": {"total_size": sum(p.size_bytes for s in merged.shards for p in s.pieces)},
            "weight_map": {piece.name: shard.name for shard in merged.shards for piece in shard.pieces},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _parents(
    run: Run,
    base: Path,
    written: Sequence[shard_writer.Written] | None,
    adapters: Sequence[Adapter],
    digests: Sequence[str],
) -> dict[str, Any]:
    """Describe the parents of the product, by the digests of artifacts with the same files."""
    known = {} if written is None else {each.name: each for each in written if each.source_digest is not None}
    named, start = run.spec.model.source, run.spec.start
    given = [each.model_dump(mode="json", exclude_none=True, include={"name", "path", "task_id", "url"})
             for each in run.spec.model.adapters]  # fmt: skip
    return {
        "base": {
            "identifier": named.identifier,
            "revision": named.revision,
            "task_id": None if start is None else start.task,
            "digest": _digest(base, known),
        },
        "adapters": [
            {**place, "digest": digest, **adapter.describe()}
            for place, digest, adapter in zip(given, digests, adapters, strict=True)
        ],
    }


def _digest(base: Path, known: dict[str, shard_writer.Written]) -> str:
    """Return the digest of a folder, whose files may be links; a base's weights were hashed while they were read."""
    entries = []
    for path in sorted(base.rglob("*")):
        name = path.relative_to(base).as_posix()
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(base).parts):
            continue
        read = known.get(name)
        if read is not None and read.source_digest is not None:
            entries.append(FileEntry(path=name, digest=read.source_digest, size_bytes=path.stat().st_size))
        else:
            entries += [FileEntry(path=name, digest=file.entry.digest, size_bytes=file.entry.size_bytes)
                        for file in scan(path.resolve())]  # fmt: skip
    return manifest_digest(entries)


def _should_verify(run: Run, parameters: int) -> bool:
    """Return whether to verify the result, which needs memory; with `auto`, a lack of memory only logs a warning."""
    wanted = run.spec.merge.verify
    try:
        if wanted:
            check.require_memory(parameters)
    except MachineError as error:
        if wanted != "auto":
            raise
        run.journal.event("merge.unproved", f"The merge is not verified. {error.message}", "warning")
        return False
    return bool(wanted)


def _verified(run: Run, prove: Callable[[], check.Comparison]) -> dict[str, Any]:
    try:
        comparison = prove()
    except InputError:
        # A merge that failed verification must not be delivered.
        shutil.rmtree(run.product, ignore_errors=True)
        raise
    if run.spec.model.adapters and not comparison.telling:
        text = (
            f"The adapters change the logits by {comparison.effect:.2g} of their spread, and rounding to the base's "
            f"dtype by {comparison.error:.2g}: the forward pass cannot distinguish them."
        )
        run.journal.event("merge.faint", text, "warning")
    return comparison.as_json()


def _reporter(journal: Journal, whole_bytes: int) -> shard_writer.Report:
    done = 0
    scale = max(1, whole_bytes >> 20)

    def report(count: int) -> None:
        nonlocal done
        done += count
        journal.progress("merging", step=min(scale, done >> 20), max_steps=scale)

    return report


def _tell_templates(run: Run, vocab: vocabulary.Vocabulary) -> None:
    if vocab.differing:
        others = ", ".join(vocab.differing)
        text = f"The chat template is that of {vocab.origin}; {others} had a different one."
        run.journal.event("merge.templates", text, "warning")


def _numbers(tensor: safetensors_reader.Tensor) -> int:
    size = safetensors_reader.FLOATS.get(tensor.dtype)
    return tensor.size_bytes // size.itemsize if size is not None else tensor.size_bytes
