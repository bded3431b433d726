"""What a worker tells whoever watches its Redis."""

from __future__ import annotations

import json

from tests.contract.transport.conftest import registration
from tunefleet.schemas.worker_link import (
    Capabilities,
    ExchangeRequest,
    Finish,
    FinishOutcome,
    Gpu,
    GpuLoad,
    Load,
    MergedTask,
    Offer,
)
from tunefleet.transport.redis.worker_guide_events import GuideEventLog, hardware

HAS: Capabilities = registration("w").capabilities


def _offer(token: str, task_id: str, **more: object) -> Offer:
    plain = {"token": token, "task_id": task_id, "workflow_id": "wf", "attempt": 1, "kind": "echo", "name": "n"}
    return Offer.model_validate({**plain, "spec": {}, **more})


def _said(**more: object) -> ExchangeRequest:
    return ExchangeRequest.model_validate({"worker_id": "w", "session": "s", **more})


def _end(token: str, outcome: FinishOutcome = "completed", **more: str) -> Finish:
    return Finish(token=token, outcome=outcome, reason="finished", error=more.get("error"))


def test_a_task_starts_once_and_ends_once_however_often_it_is_said() -> None:
    event_log = GuideEventLog()
    event_log.note(_offer("t1", "task-1"), "2026-01-01T00:00:00+00:00")
    first = event_log.exchanges(_said(accepts=("t1",)))
    assert [entry["type"] for entry in first.tasks] == ["TASK_STARTED"]
    assert (first.fields["status"], first.fields["extra_task_id"]) == ("RUNNING", "task-1")
    assert json.loads(first.tasks[0]["payload"])["dispatched_at"] == "2026-01-01T00:00:00+00:00"
    assert event_log.exchanges(_said(holding=("t1",))).tasks == []
    last = event_log.exchanges(_said(finishes=(_end("t1"),)))
    assert [(entry["type"], entry["task_id"]) for entry in last.tasks] == [("TASK_SUCCEEDED", "task-1")]
    assert (last.fields["status"], last.fields["extra_last_task"]) == ("IDLE", "task-1")
    assert json.loads(last.workers[0]["payload"]) == {"last_task": "task-1"}
    assert event_log.exchanges(_said(finishes=(_end("t1"),))).tasks == []


def test_each_way_to_end_has_its_name() -> None:
    event_log = GuideEventLog([_offer(f"t{number}", f"task-{number}") for number in range(3)])
    ends = (_end("t0", "failed", error="no data"), _end("t1", "cancelled"), _end("t2", "paused"))
    told = event_log.exchanges(_said(finishes=ends)).tasks
    assert [entry["type"] for entry in told] == ["TASK_FAILED", "TASK_CANCELLED", "TASK_UPDATE"]
    assert told[0]["error"] == "no data"


def test_a_merged_task_is_told_of_by_itself() -> None:
    event_log = GuideEventLog()
    child = MergedTask(token="c", task_id="child", workflow_id="wf", attempt=1, name="c", spec={})
    event_log.note(_offer("p", "parent", merged=(child,)), None)
    told = event_log.exchanges(_said(finishes=(_end("p"), _end("c")))).tasks
    assert [entry["task_id"] for entry in told if entry["type"] == "TASK_SUCCEEDED"] == ["parent", "child"]


METRICS = {
    "uptime_sec", "accrued_cost_usd", "loadavg", "power", "power_summary", "estimated_energy_kwh",
}  # fmt: skip
SUMMARY = {
    "avg_cpu_watts", "avg_gpu_watts", "per_gpu_avg_watts", "estimated_energy_kwh", "estimated_energy_breakdown",
    "samples",
}  # fmt: skip


def test_a_heartbeat_tells_load_cost_and_the_energy_of_the_gpus() -> None:
    event_log = GuideEventLog()
    event_log.registers("w", HAS.model_copy(update={"cost_per_hour": 2.0}))
    load = Load(memory_free_bytes=1, disk_free_bytes=1, load_1m=0.5)
    for left, right, joules in ((100.0, 40.0, 0.0), (300.0, 60.0, 7.2e6)):
        gpus = (GpuLoad(uuid="GPU-0", power_w=left), GpuLoad(uuid="GPU-1", power_w=right), GpuLoad(uuid="GPU-2"))
        page = event_log.exchanges(_said(load=load.model_copy(update={"gpus": gpus, "gpu_energy_j": joules})))
    assert page.beats
    beat = next(entry for entry in page.workers if entry["type"] == "HEARTBEAT")
    metrics = json.loads(beat["metrics"])
    assert metrics.keys() == METRICS
    assert metrics["loadavg"] == {"1m": 0.5, "5m": None, "15m": None}
    assert metrics["power"].keys() == {"timestamp", "cpu_watts", "gpu_watts"}
    assert metrics["power"]["gpu_watts"] == {"total": 360.0, "per_gpu": {"GPU-0": 300.0, "GPU-1": 60.0}}
    assert metrics["estimated_energy_kwh"] == 2.0
    summary = metrics["power_summary"]
    assert summary == {
        "avg_cpu_watts": None,
        "avg_gpu_watts": 250.0,
        "per_gpu_avg_watts": {"GPU-0": 200.0, "GPU-1": 50.0},
        "estimated_energy_kwh": 2.0,
        "estimated_energy_breakdown": {"cpu_kwh": None, "gpu_kwh": 2.0},
        "samples": 2,
    }
    assert not event_log.exchanges(_said()).beats
    left_with = json.loads(event_log.leaves("w")["payload"])
    assert left_with.keys() == {"cost_per_hour", "uptime_sec", "accrued_cost_usd", "power_summary"}
    assert left_with["power_summary"] == summary


def test_energy_that_nobody_tells_is_not_nought() -> None:
    event_log = GuideEventLog()
    event_log.registers("w", HAS)
    page = event_log.exchanges(_said(load=Load(memory_free_bytes=1, disk_free_bytes=1, gpus=(GpuLoad(uuid="GPU-0"),))))
    metrics = json.loads(next(entry for entry in page.workers if entry["type"] == "HEARTBEAT")["metrics"])
    assert metrics["power"]["gpu_watts"] == {"total": None, "per_gpu": {}}
    summary = metrics["power_summary"]
    assert summary.keys() == SUMMARY
    assert (metrics["estimated_energy_kwh"], summary["avg_gpu_watts"], summary["per_gpu_avg_watts"]) == (None, None, {})
    assert summary["estimated_energy_breakdown"] == {"cpu_kwh": None, "gpu_kwh": None}


def test_hardware_has_the_guides_names() -> None:
    gpu = Gpu(index=0, name="A100", uuid="GPU-0", memory_total_bytes=80, memory_free_bytes=70)
    told = hardware(HAS.model_copy(update={"gpus": (gpu,), "bandwidth_bytes_per_s": 1e6, "address": "10.0.0.2"}))
    assert told["gpu"]["gpus"] == [{"index": 0, "name": "A100", "uuid": "GPU-0", "memory_total_bytes": 80}]
    assert told["network"] == {"ip": "10.0.0.2", "bandwidth_bytes_per_sec": 1e6}
