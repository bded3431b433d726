"""What a user may ask of a federation: options belong to strategies, and one without effect is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from tunefleet.spec.options.federation_options import FederationSpec, StrategyName, StrategySpec


def test_each_strategy_gets_its_own_defaults() -> None:
    assert StrategySpec() == StrategySpec(name="fedavg", weighting="examples")
    diloco = StrategySpec(name="diloco")
    assert (diloco.server_lr, diloco.momentum, diloco.beta1) == (0.7, 0.9, None)
    assert StrategySpec(name="fedadam").server_lr == 0.01
    assert StrategySpec(name="multi_krum").weighting == "equal"
    assert StrategySpec(name="median").weighting is None


def test_the_name_alone_is_a_strategy() -> None:
    assert FederationSpec.model_validate({"strategy": "fedavg_exact"}).strategy == StrategySpec(name="fedavg_exact")
    with pytest.raises(ValidationError, match="fedavg"):
        FederationSpec.model_validate({"strategy": "average"})


@pytest.mark.parametrize("name", ["fedavg_exact", "fedprox", "fedyogi", "diloco", "median", "multi_krum"])
def test_what_is_written_down_is_read_back(name: str) -> None:
    spec = StrategySpec(name=name)
    assert StrategySpec.model_validate_json(spec.model_dump_json()) == spec
    federation = FederationSpec(strategy=spec, min_workers=9)
    assert FederationSpec.model_validate_json(federation.model_dump_json()) == federation


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "fedsgd"}, "'fedavg'"),
        ({"name": "fedavg", "mu": 0.1}, "no effect with the strategy fedavg"),
        ({"mu": 0.1}, "no effect with the strategy fedavg"),
        ({"name": "median", "weighting": "equal"}, "no effect with the strategy median"),
        ({"name": "krum", "clip_norm": 1}, "no effect with the strategy krum"),
        ({"name": "fedavg", "rank": 4}, "no effect with the strategy fedavg"),
        ({"name": "fedavg_exact", "output": "stack", "rank": 4}, "no effect with output: stack"),
        ({"weighting": "equal", "max_examples": 5}, "no effect with weighting: equal"),
        ({"name": "trimmed_mean", "trim": 0.5}, "less than 0.5"),
        ({"name": "diloco", "momentum": 1.0}, "less than 1"),
        ({"clip_norm": 0}, "greater than 0"),
        ({"clip_norm": True}, "must be a number"),
        ({"name": "krum", "byzantine": 0}, "greater than or equal to 1"),
        ({"typo": 1}, "Extra inputs"),
        ({"name": ["fedavg"]}, "Input should be"),
    ],
)
def test_what_has_no_effect_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StrategySpec.model_validate(given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_workers": 0}, "greater than or equal to 1"),
        ({"min_workers": 4, "max_workers": 3}, "less than min_workers, which is 4"),
        ({"participants": ["a"]}, "has 1 names, but min_workers is 2"),
        ({"participants": ["a", "a"]}, "lists a worker twice"),
        ({"mixed_ranks": True}, "cannot be used with the strategy fedavg"),
        ({"mixed_ranks": True, "strategy": {"name": "median"}, "min_workers": 3}, "strategy median"),
        ({"strategy": {"name": "krum"}}, "too small for krum, which needs 5"),
        ({"strategy": {"name": "multi_krum", "keep": 8}, "min_workers": 5}, "which needs 8"),
        ({"strategy": {"name": "median"}}, "too small for median, which needs 3"),
        ({"deadline_s": 0}, "greater than 0"),
        ({"max_update_bytes": 0}, "greater than or equal to 1"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_a_federation_that_could_never_close_a_round_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        FederationSpec.model_validate(given)
    assert words in str(caught.value)


def test_the_secret_of_callbacks_is_never_written_down() -> None:
    spec = FederationSpec(callback_secret="hush-hush")
    assert "hush-hush" not in spec.model_dump_json()
    assert "hush-hush" not in repr(spec)


def test_defaults_are_those_of_the_documents() -> None:
    spec = FederationSpec()
    assert (spec.min_workers, spec.sync_every_steps, spec.strategy.name) == (2, 100, "fedavg")
    assert spec.max_update_bytes == 2 << 30


@pytest.mark.parametrize("name", get_args(StrategyName))
def test_a_robust_strategy_with_one_token_for_all_is_remarked_on(name: StrategyName) -> None:
    robust = name in {"median", "trimmed_mean", "krum", "multi_krum"}
    spec = FederationSpec(strategy=StrategySpec(name=name), min_workers=5)
    assert ["form a majority" in each for each in spec.remarks] == [True] * robust
    assert spec.model_copy(update={"own_tokens": True}).remarks == ()
