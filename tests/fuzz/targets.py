"""What is fed with bytes: each target reads them as a stranger's, and raises nothing but what it is allowed to raise.

A target is called with the bytes and a folder of its own, empty before; what it asserts holds whatever the bytes are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson

from tests.fuzz.serving import control_answers
from tests.fuzz.told import exchange_is_taken, journal_is_taken
from tunefleet.agent.jobs.journal import JournalReader
from tunefleet.artifacts import UnpackLimits, unpack
from tunefleet.errors import AdapterRefused, ArtifactError, SpecError, TooLargeError, TunefleetError
from tunefleet.federation import AdapterFile
from tunefleet.runtime.log_shipper import _complete_lines
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec import local_paths, parse_workflow, secrets_of
from tunefleet.spec.documents.campaign_file import dump_campaign_spec, load_campaign_spec, parse_campaigns

Target = Callable[[bytes, Path], None]
SMALL: Final = UnpackLimits(max_files=20, max_total_bytes=1 << 20, max_ratio=50, ratio_from_bytes=100_000)


def workflow(data: bytes, folder: Path) -> None:
    """A workflow is read, or refused with faults that say where and what."""
    text = data.decode(errors="replace")
    try:
        read = parse_workflow(text, filename="any.yaml")
    except SpecError as refused:
        _are_clear(refused, text)
        return
    for task in read.tasks:
        orjson.dumps(task.raw)
        local_paths(task.raw)
        secrets_of(task.raw)


def campaign(data: bytes, folder: Path) -> None:
    """A file of campaigns is read, or refused alike; what was read is what is stored."""
    text = data.decode(errors="replace")
    try:
        read = parse_campaigns(text, filename="any.yaml")
    except SpecError as refused:
        _are_clear(refused, text)
        return
    for spec in read.values():
        assert load_campaign_spec(orjson.loads(orjson.dumps(dump_campaign_spec(spec)))) == spec


def archive(data: bytes, folder: Path) -> None:
    """An archive comes out below its folder, or leaves nothing behind."""
    inner = folder / "x" / "y"
    inner.mkdir(parents=True)
    (inner / "archive").write_bytes(data)
    try:
        unpack(inner / "archive", inner / "dest", limits=SMALL)
    except (ArtifactError, TooLargeError) as refused:
        _is_a_sentence(refused)
        gone = True
    else:
        gone = False
    assert gone != (inner / "dest").exists()
    left = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    assert all(name in {"x", "x/y", "x/y/archive"} or name.startswith("x/y/dest") for name in left), left
    found = [path for path in folder.rglob("*") if path.name != "archive"]
    assert not any(path.is_symlink() or not (path.is_dir() or path.is_file()) for path in found)
    assert sum(path.stat().st_size for path in found if path.is_file()) <= SMALL.max_total_bytes


def safetensors(data: bytes, folder: Path) -> None:
    """A file of tensors is read whole, or refused with a sentence."""
    path = folder / "adapter_model.safetensors"
    path.write_bytes(data)
    try:
        with AdapterFile(path) as file:
            for name in file.tensors:
                file.whole(name)
    except AdapterRefused as refused:
        _is_a_sentence(refused)


def header(data: bytes, folder: Path) -> None:
    """The same, with the length of the header right: so that what is behind it is looked at."""
    end = data.rfind(b"}") + 1
    safetensors(struct.pack("<Q", end) + data, folder)


def journal_file(data: bytes, folder: Path) -> None:
    """A journal that lies on a disk is followed, whatever became of it there."""
    job = JobFolder(folder)
    job.journal_dir.mkdir(parents=True)
    file = job.journal_dir / "launch-0.jsonl"
    file.write_bytes(data)
    reader = JournalReader(job, of_tokens=True)
    reader.look()
    lines, size = _complete_lines(file, 0)
    assert size <= len(data)
    assert len(lines) <= data.count(b"\n")
    with file.open("ab") as more:
        more.write(b'\n{"type":"metric","seq":9,"at":1.0,"step":7,"values":{"loss":0.5}}\n')
    assert [point.train_loss for point in reader.look().points][-1:] == [0.5], "what is behind it is read"


def _is_a_sentence(refused: TunefleetError) -> None:
    assert refused.message.endswith("."), refused.message


def _are_clear(refused: SpecError, text: str) -> None:
    assert refused.faults
    lines = 2 + sum(text.count(end) for end in "\n\r\x85\u2028\u2029")
    for fault in refused.faults:
        assert fault.message, fault
        assert 0 < fault.line <= lines, fault
        assert fault.column > 0, fault
    str(refused).encode()


TARGETS: Final[dict[str, Target]] = {
    "workflow": workflow,
    "campaign": campaign,
    "archive": archive,
    "safetensors": safetensors,
    "header": header,
    "journal_file": journal_file,
    "journal": journal_is_taken,
    "exchange": exchange_is_taken,
    "control": control_answers,
}
