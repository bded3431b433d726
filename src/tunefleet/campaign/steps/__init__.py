"""The steps of a cycle, and the outcome that each stores for later steps.

data        rows_task, train, test, chunk (task_id, artifact_id, digest, rows), epoch, index, chunks, start, stop, to,
            model (task_id, and digest with another tokenizer)
upload      objects: role → object key, if the provider fetches the chunk from a store; else nothing
submit      ticket, key, provider, base (repo, task_id, version, …)
wait        candidates, detail, cost_s
evaluate    metric, base, promoted, candidates: each with task_id and metrics
select      candidate, evaluation, loss
merge       form; task_id, artifact_id and digest, or url if it is on the Hub: merged there, or used unchanged
gate        passed, reason, against
publish     url, or nothing
record      version, stage
sleep       next_at, slept_s
"""

from __future__ import annotations

from collections.abc import Mapping

from tunefleet.campaign.contract import Step
from tunefleet.campaign.steps.data import DataStep, UploadStep
from tunefleet.campaign.steps.evaluate import EvaluateStep
from tunefleet.campaign.steps.gate import GateStep, SelectStep
from tunefleet.campaign.steps.merge import MergeStep
from tunefleet.campaign.steps.publish import PublishStep
from tunefleet.campaign.steps.record import RecordStep
from tunefleet.campaign.steps.sleep import SleepStep
from tunefleet.campaign.steps.submit import SubmitStep
from tunefleet.campaign.steps.wait import WaitStep
from tunefleet.lifecycle.cycle import StepName


def all_steps() -> Mapping[StepName, Step]:
    """Return the eleven steps by name."""
    made: tuple[Step, ...] = (
        DataStep(),
        UploadStep(),
        SubmitStep(),
        WaitStep(),
        EvaluateStep(),
        SelectStep(),
        MergeStep(),
        GateStep(),
        PublishStep(),
        RecordStep(),
        SleepStep(),
    )
    return {step.name: step for step in made}
