"""Settings with an effect on one machine: GPUs by a double of the driver, admission, logs, precision."""

from __future__ import annotations

import json
import logging
import os
import struct
import time
from pathlib import Path

import pytest

from tunefleet.agent import agent, log_setup
from tunefleet.agent.gpus import Gpus
from tunefleet.agent.jobs.logtext import LogPages, LogTimes, stamped
from tunefleet.errors import InputError, MachineError
from tunefleet.runtime import job_log
from tunefleet.runtime.gpu import gpu_locks
from tunefleet.runtime.gpu.info import GpuFigures
from tunefleet.settings import AgentSettings

GIB = 1 << 30
A100 = GpuFigures(0, "GPU-a", "NVIDIA A100-SXM4-40GB", 4 * GIB, 40 * GIB, 73.0)
T4 = GpuFigures(1, "GPU-t", "Tesla T4", 1 * GIB, 16 * GIB, None)
SPEC = {
    "taskType": "sft",
    "model": {"source": {"identifier": "org/model"}},
    "data": {"path": "x.jsonl"},
}


def settings(tmp_path: Path, **more: object) -> AgentSettings:
    return AgentSettings(_env_file=None, home=tmp_path, **more)  # type: ignore[call-arg, arg-type]


def seen(tmp_path: Path, *devices: GpuFigures, **more: object) -> Gpus:
    gpus = Gpus(settings(tmp_path, **more), read=lambda: devices)
    gpus.look()
    return gpus


def test_a_machine_without_a_gpu_says_what_the_document_says(tmp_path: Path) -> None:
    gpus = seen(tmp_path)
    assert gpus.info() == {"name": "CPU", "total_memory_gb": 0.0, "cuda_version": "N/A", "device_count": 0}
    assert gpus.limit_bytes() is None
    assert gpus.choose(SPEC) == ()


def test_devices_are_told_limited_and_chosen(tmp_path: Path) -> None:
    gpus = seen(tmp_path, A100, T4)
    assert gpus.info() == {
        "name": "NVIDIA A100-SXM4-40GB", "total_memory_gb": 40.0, "cuda_version": "N/A", "device_count": 2,
    }  # fmt: skip
    assert (gpus.load("GPU-a"), gpus.load("GPU-t"), gpus.has_bf16) == (73.0, None, False)
    assert gpus.limit_bytes() == int(36 * GIB)
    assert gpus.choose(SPEC) == ("GPU-a",)
    held = gpu_locks.claim(gpu_locks.ledger_dir(settings(tmp_path).endpoints_dir), ["GPU-a"], "another")
    assert gpus.choose(SPEC) == ("GPU-t",), "another program of ours has the first one"
    os.close(held[0])
    assert seen(tmp_path, A100, T4, visible_gpus="1").choose(SPEC) == ("GPU-t",)
    assert seen(tmp_path, A100).has_bf16
    several = {**SPEC, "resources": {"processes": 3, "hardware": {"gpu": {"count": 0}}}}
    assert gpus.choose(several) == ()


def test_a_job_gets_the_type_and_memory_that_it_wants_or_is_refused(tmp_path: Path) -> None:
    gpus = seen(tmp_path, A100, T4)

    def wanting(**gpu: object) -> dict[str, object]:
        return {**SPEC, "resources": {"hardware": {"gpu": gpu}}}

    assert gpus.choose(wanting(type="t4")) == ("GPU-t",), "though the other one has more memory free"
    assert gpus.choose(wanting(memory="30Gi")) == ("GPU-a",)
    (held,) = gpu_locks.claim(gpu_locks.ledger_dir(settings(tmp_path).endpoints_dir), ["GPU-a"], "another")
    with pytest.raises(gpu_locks.GpuBusyError, match="A100"):
        gpus.choose(wanting(memory="30Gi"))
    os.close(held)
    for never in ({"type": "h100"}, {"type": "t4", "memory": "30Gi"}, {"count": 3}):
        with pytest.raises(MachineError, match="match") as refused:
            gpus.choose(wanting(**never))
        assert not isinstance(refused.value, gpu_locks.GpuBusyError), "waiting does not help"


def test_a_job_that_could_never_fit_is_refused_with_the_setting_that_says_so(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1 << 20, 1000], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    full = {"taskType": "sft", "model": {"source": {"identifier": str(tmp_path)}}}
    assert agent.needed_bytes(full) == 1000 * (1 << 20) * 16
    with pytest.raises(InputError, match=r"GPU_MEMORY_FRACTION=0\.9"):
        agent.admit(full, 14 * GIB, 0.9)
    agent.admit(full, 16 * GIB, 0.9)
    agent.admit({**full, "taskType": "lora_sft", "quantization": {"load_in_4bit": True}}, 1 * GIB, 0.9)
    agent.admit(full, None, 0.9)
    agent.admit(SPEC, 1, 0.9)
    pairs = {**full, "taskType": "dpo"}
    assert agent.needed_bytes(pairs) == 1000 * (1 << 20) * 18, "with the untrained copy that it compares with"
    early = {**pairs, "training": {"precompute_ref_log_probs": True}}
    assert agent.needed_bytes(early) == agent.needed_bytes({**pairs, "taskType": "orpo"}) == 1000 * (1 << 20) * 16
    assert agent.needed_bytes({**pairs, "lora": {}}) == 1000 * (1 << 20) * 2


def test_the_file_rotates_and_what_is_old_goes(tmp_path: Path) -> None:
    old = tmp_path / "agent.log.7"
    old.write_text("")
    os.utime(old, (0, time.time() - 31 * 24 * 3600))
    handler = log_setup.RotatingFile(tmp_path / "agent.log", max_bytes=500)
    handler.setFormatter(log_setup.JsonLines())
    assert not old.exists()
    for number in range(10):
        handler.emit(logging.LogRecord("x", logging.INFO, "f.py", 1, "line %d", (number,), None))
    handler.close()
    files = sorted(tmp_path.glob("agent.log*"))
    assert len(files) > 2
    last = json.loads((tmp_path / "agent.log").read_text().splitlines()[-1])
    assert (last["message"], last["level"]) == ("line 9", "INFO")


def placed(lines: list[bytes]) -> list[tuple[int, bytes]]:
    """Lines with where they begin."""
    return [(sum(len(each) + 1 for each in lines[:index]), line) for index, line in enumerate(lines)]


def test_a_line_has_the_time_at_which_it_was_written(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    times, later = LogTimes(log), LogTimes(log)
    times.note(now=90.0)
    lines = []
    for now, text in ((100.0, b"loading"), (100.5, b"still"), (160.0, b"step 1"), (220.0, b"step 2")):
        lines.append(text)
        with log.open("ab") as file:
            file.write(text + b"\n")
        times.note(now=now)
    lines.append(b"not noted yet")
    assert stamped(placed(lines), 0.0, later) == [
        "[1970-01-01 00:01:40] loading",
        "[1970-01-01 00:02:40] still",
        "[1970-01-01 00:02:40] step 1",
        "[1970-01-01 00:03:40] step 2",
        "[1970-01-01 00:03:40] not noted yet",
    ]
    assert (times.size, later.at(0), later.at(10_000)) == (log.stat().st_size, 100.0, None)


def test_lines_get_their_own_time_or_that_of_the_line_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        lines = [b"first", b"2026-01-02 10:00:00,123 INFO said", b"  0%|   | 0/9\r 50%|##  | 5/9\r", b"\xff"]
        assert stamped(placed(lines), 0.0, LogTimes(tmp_path / "log")) == [
            "[1970-01-01 00:00:00] first",
            "[2026-01-02 15:00:00] INFO said",
            "[2026-01-02 15:00:00]  50%|##  | 5/9",
            "[2026-01-02 15:00:00] �",
        ]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_pages_of_a_log_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "log"
    pages = LogPages(file)

    def page(offset: int, limit: int) -> tuple[list[bytes], int, int]:
        lines, first, total = pages.page(offset, limit)
        content = file.read_bytes()
        assert all(content[begin:].startswith(line + b"\n") for begin, line in lines)
        return [line for _, line in lines], first, total

    assert pages.page(0, 10) == ([], 0, 0)
    file.write_bytes(b"".join(b"%d\n" % n for n in range(2500)) + b"torn")
    assert page(-2, 5) == ([b"2498", b"2499"], 2498, 2500)
    assert page(999, 3) == ([b"999", b"1000", b"1001"], 999, 2500)
    with file.open("ab") as log:
        log.write(b" off\nnew\n")
    assert page(2500, 10) == ([b"torn off", b"new"], 2500, 2502)
    assert page(9999, 10) == ([], 2502, 2502)


def test_pages_and_times_of_a_log_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "BEGINNING_BYTES", 100)
    file = tmp_path / "log"
    pages, times = LogPages(file), LogTimes(file)
    file.write_bytes(b"".join(b"%09d\n" % n for n in range(2500)))
    times.note(now=100.0)
    assert pages.total() == 2500
    assert job_log.shorten(file, 2000)
    with file.open("ab") as log:
        log.write(b"new\n")
    times.note(now=200.0)
    lines, first, total = pages.page(-2, 5)
    assert (lines[-1][1], first, total) == (b"new", 2501, 2503), "the numbers go on as if nothing was dropped"
    for offset in (50, 2499, 2500):  # what is dropped is passed over
        assert pages.page(offset, 5) == (lines, 2501, 2503)
    beginning, first, _ = pages.page(5, 20)
    assert ([line for _, line in beginning][:2], first, len(beginning)) == ([b"000000005", b"000000006"], 5, 6)
    assert pages.page(2503, 5)[0] == []
    assert b" of this log are dropped here" in lines[0][1]
    assert [times.at(position) for position, _ in (*lines, *pages.page(0, 1)[0])] == [200.0, 200.0, 100.0]
