"""What becomes of an optimizer's state, by policy."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Accelerator, LiveAdapter, MomentPolicy, adapted, hot_reload, other_values, torch, train
    pytest.importorskip("peft")

    import torch
    from accelerate import Accelerator

    from tests.unit.workloads.federated.tiny import adapted, other_values, train
    from tunefleet.workloads.federated import hot_reload
    from tunefleet.workloads.federated.live_adapter import LiveAdapter
    from tunefleet.workloads.federated.weight_reload import MomentPolicy


pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


def trained(optimizer: type[Any] | None = None, **options: Any) -> tuple[Any, Any, LiveAdapter]:
    model = adapted()
    parameters = [each for each in model.parameters() if each.requires_grad]
    made = (optimizer or torch.optim.AdamW)(parameters, lr=1e-2, **options)
    train(model, made, 4)
    return model, made, LiveAdapter(model)


def state_of(optimizer: Any, live: LiveAdapter) -> dict[str, dict[str, torch.Tensor]]:
    return {
        name: {key: value.clone() for key, value in optimizer.state[parameter].items()}
        for name, parameter in live.trained.items()
        if optimizer.state.get(parameter)
    }


@pytest.mark.parametrize(
    ("policy", "first", "second", "step"),
    [("keep", 1.0, 1.0, 4), ("scale", 0.5, 1.0, 4), ("scale(0.25)", 0.25, 1.0, 4)],
)
def test_moments_are_kept_or_shortened(policy: str, first: float, second: float, step: int) -> None:
    model, optimizer, live = trained()
    before = state_of(optimizer, live)
    hot_reload(model, other_values(live), optimizer, optimizer_state=policy)
    after = state_of(optimizer, live)
    assert len(after) == 8
    for name, moments in after.items():
        torch.testing.assert_close(moments["exp_avg"], first * before[name]["exp_avg"])
        torch.testing.assert_close(moments["exp_avg_sq"], second * before[name]["exp_avg_sq"])
        assert int(moments["step"]) == step


def test_a_reset_begins_as_a_new_optimizer_would() -> None:
    model, optimizer, live = trained()
    values = other_values(live)
    hot_reload(model, values, optimizer, optimizer_state="reset")
    assert state_of(optimizer, live) == {}
    losses = train(model, optimizer, 5)
    fresh = adapted()
    hot_reload(fresh, values)
    new = torch.optim.AdamW([each for each in fresh.parameters() if each.requires_grad], lr=1e-2)
    assert train(fresh, new, 5) == losses


def test_parameters_that_are_not_the_adapters_keep_their_state() -> None:
    model = adapted()
    extra = model.base_model.model.model.norm.weight.requires_grad_()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    train(model, optimizer, 3)
    live = LiveAdapter(model)
    hot_reload(model, other_values(live), optimizer, optimizer_state="reset")
    assert list(optimizer.state) == [extra]


def test_momentum_of_sgd_is_shortened_through_accelerates_wrapper() -> None:
    model, inner, live = trained(torch.optim.SGD, momentum=0.9)
    optimizer = Accelerator(cpu=True).prepare(inner)
    before = state_of(inner, live)
    hot_reload(model, other_values(live), optimizer, optimizer_state="scale(0.1)")
    for name, moments in state_of(inner, live).items():
        torch.testing.assert_close(moments["momentum_buffer"], 0.1 * before[name]["momentum_buffer"])


def test_moments_in_8_bits_are_shortened_by_their_blocks() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))

    class Small:
        state = {parameter: {"state1": torch.ones(4, dtype=torch.uint8), "absmax1": torch.tensor([2.0])}}

    MomentPolicy.parse("scale(0.5)").apply(Small(), {"lora": parameter})
    assert Small.state[parameter]["absmax1"].tolist() == [1.0]
    assert Small.state[parameter]["state1"].tolist() == [1] * 4


def test_a_state_without_first_moments_is_not_scaled_in_silence() -> None:
    model, optimizer, live = trained(torch.optim.RMSprop)
    with pytest.raises(InputError, match=r"RMSprop keeps .*square_avg"):
        hot_reload(model, other_values(live), optimizer, optimizer_state="scale")


@pytest.mark.parametrize("text", ["forget", "keep(0.5)", "scale(0)", "scale(1)", "scale(2)", "reset()"])
def test_what_is_no_policy_is_said(text: str) -> None:
    with pytest.raises(InputError, match="optimizer_state is"):
        MomentPolicy.parse(text)
