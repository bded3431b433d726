"""The variables of placement: each acts, and a value that cannot act is refused by name."""

from __future__ import annotations

import pytest

from tunefleet.errors import MachineError
from tunefleet.orchestrator.scheduling.scheduler import policy_of
from tunefleet.placement import Policy
from tunefleet.settings import ServerSettings, load

VARIABLES = {
    "ORCHESTRATOR_WORKER_SELECTION": "first_fit",
    "SCHEDULER_LAMBDA_INFERENCE": "0.1",
    "SCHEDULER_LAMBDA_TRAINING": "0.2",
    "SCHEDULER_LAMBDA_OTHER": "0.3",
    "SCHEDULER_SELECTION_JITTER": "0",
    "ENABLE_CONTEXT_REUSE": "false",
    "WORKER_CACHE_TTL_SEC": "60",
    "ENABLE_STAGE_WEIGHT_STICKINESS": "true",
    "ORCHESTRATOR_DISPATCH_MODE": "adaptive",
}


def test_without_variables_the_documented_defaults_hold() -> None:
    assert policy_of(load(ServerSettings)) == Policy()
    assert (load(ServerSettings).cache_ttl_s, load(ServerSettings).stickiness) == (3600.0, False)


def test_each_variable_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    settings = load(ServerSettings)
    lambdas = {"inference": 0.1, "training": 0.2, "other": 0.3}
    assert policy_of(settings) == Policy("first_fit", lambdas, 0.0, reuse=False)  # type: ignore[arg-type]
    assert (settings.cache_ttl_s, settings.stickiness) == (60.0, True)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ORCHESTRATOR_DISPATCH_MODE", "static_worker", "baseline"),
        ("ORCHESTRATOR_DISPATCH_MODE", "fixed_pipeline", "baseline"),
        ("ORCHESTRATOR_DISPATCH_MODE", "static_round_robin", "baseline"),
        ("ORCHESTRATOR_DISPATCH_MODE", "whatever", "unknown mode"),
        ("ORCHESTRATOR_WORKER_SELECTION", "best", "best_fit"),
        ("SCHEDULER_LAMBDA_TRAINING", "1.5", "at most 1"),
    ],
)
def test_what_cannot_act_is_refused_by_name(name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(MachineError, match=name) as refused:
        load(ServerSettings)
    assert value in str(refused.value)
    assert said in str(refused.value)
