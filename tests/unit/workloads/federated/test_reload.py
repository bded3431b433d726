"""Values are copied into the adapter that trains, and what trains afterwards is what the optimizer holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import AdapterRefused, InputError, ModelError, NotFoundError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global LiveAdapter, adapted, base, batch, check_held, classifier, hot_reload, other_values, parse_share
    global read_adapter, save_file, torch, train
    pytest.importorskip("peft")

    import torch
    from safetensors.torch import save_file

    from tests.unit.workloads.federated.tiny import adapted, base, batch, classifier, other_values, train
    from tunefleet.workloads.federated import hot_reload
    from tunefleet.workloads.federated.live_adapter import LiveAdapter, read_adapter
    from tunefleet.workloads.federated.weight_reload import check_held, parse_share


# PEFT asks Transformers by a name that will go.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


def optimizer_of(model: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)


def copied(live: LiveAdapter) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in live.tensors.items()}


def test_what_trains_after_the_reload_is_what_the_optimizer_holds_and_it_goes_on_learning() -> None:
    model = adapted()
    optimizer = optimizer_of(model)
    before = train(model, optimizer, 10)
    live = LiveAdapter(model)
    objects = {name: id(tensor) for name, tensor in live.tensors.items()}
    values = other_values(live)
    done = hot_reload(model, values, optimizer)
    assert done.tensors == len(live.tensors) == 8
    assert all(torch.equal(live.tensors[name], value) for name, value in values.items())
    after = train(model, optimizer, 30)
    again = LiveAdapter(model)
    assert {name: id(tensor) for name, tensor in again.tensors.items()} == objects
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert {id(each) for each in again.trained.values()} == held
    assert not any(torch.equal(again.tensors[name], value) for name, value in values.items())
    assert after[-1] < after[0]
    assert after[-1] < before[-1]


def test_the_recipe_of_a_second_adapter_is_refused_since_it_would_learn_nothing(tmp_path: Path) -> None:
    model = adapted()
    optimizer = optimizer_of(model)
    model.save_pretrained(tmp_path)
    model.load_adapter(str(tmp_path), adapter_name="aggregated")
    model.set_adapter("aggregated")
    live = LiveAdapter(model)
    stale = copied(live)
    losses = train(model, optimizer, 3)
    # It prints losses, and nothing changes.
    assert losses[0] == losses[-1]
    assert all(torch.equal(live.tensors[name], value) for name, value in stale.items())
    with pytest.raises(ModelError, match=r"updates 0 of the 8 .* 'aggregated'"):
        hot_reload(model, tmp_path, optimizer)


def test_the_one_line_that_mends_it_needs_nothing_of_ours(tmp_path: Path) -> None:
    model = adapted()
    optimizer = optimizer_of(model)
    model.save_pretrained(tmp_path)
    train(model, optimizer, 3)
    model.load_adapter(str(tmp_path), adapter_name="default", is_trainable=True)
    live = LiveAdapter(model)
    loaded = copied(live)
    check_held(optimizer, live.trained, live.name)
    train(model, optimizer, 3)
    assert not any(torch.equal(live.tensors[name], value) for name, value in loaded.items())


def test_a_folder_is_read_as_peft_saves_it(tmp_path: Path) -> None:
    source, model = adapted(seed=5), adapted(seed=1)
    train(source, optimizer_of(source), 5)
    source.save_pretrained(tmp_path)
    hot_reload(model, tmp_path)
    theirs = LiveAdapter(source).tensors
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in LiveAdapter(model).tensors.items())
    with pytest.raises(NotFoundError, match=r"adapter_model\.safetensors not found"):
        hot_reload(model, tmp_path / "elsewhere")


def test_the_published_names_are_those_that_peft_saves(tmp_path: Path) -> None:
    for model in (adapted(), classifier(), adapted(target_modules=["q_proj", "embed_tokens"])):
        model.save_pretrained(tmp_path, save_embedding_layers=False)
        saved, config = read_adapter(tmp_path)
        live = LiveAdapter(model)
        assert live.tensors.keys() == saved.keys()
        assert all(torch.equal(live.tensors[name], value) for name, value in saved.items())
        said = live.described()
        assert {name: said[name] for name in said if name != "target_modules"} == {
            name: config[name] for name in config if name != "target_modules"
        }
        assert set(live.trained) == set(saved)


def test_a_module_that_is_trained_whole_is_reloaded_too() -> None:
    model = classifier()
    live = LiveAdapter(model)
    (head,) = [name for name in live.tensors if "lora" not in name]
    values = other_values(live)
    hot_reload(model, values, optimizer_of(model))
    assert torch.equal(model.base_model.model.score.modules_to_save["default"].weight, values[head])


def test_a_mix_keeps_a_part_of_what_was_trained_meanwhile() -> None:
    model = adapted()
    train(model, optimizer_of(model), 3)
    live = LiveAdapter(model)
    mine, theirs = copied(live), other_values(live)
    hot_reload(model, theirs, reload="mix(0.25)")
    for name, tensor in live.tensors.items():
        torch.testing.assert_close(tensor, 0.75 * mine[name] + 0.25 * theirs[name])


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
def test_every_parameter_keeps_its_type(kept: Any) -> None:
    kept = getattr(torch, kept)
    model = adapted(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(kept)
    live = LiveAdapter(model)
    mine, theirs = copied(live), other_values(live)
    hot_reload(model, theirs, reload="mix(0.5)")
    for name, tensor in live.tensors.items():
        assert tensor.dtype == kept
        torch.testing.assert_close(tensor, (0.5 * mine[name].float() + 0.5 * theirs[name]).to(kept))
    hot_reload(model, theirs)
    assert all(torch.equal(tensor, theirs[name].to(kept)) for name, tensor in live.tensors.items())


def test_a_wrapped_model_is_found() -> None:
    model = adapted()

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = model

    assert LiveAdapter(Wrapper()).model is model
    with pytest.raises(ModelError, match="LlamaForCausalLM has none"):
        LiveAdapter(base())
    with pytest.raises(ModelError, match="no adapter 'other'"):
        LiveAdapter(model, "other")


def test_what_does_not_fit_is_refused_by_name() -> None:
    model = adapted()
    live = LiveAdapter(model)
    name = next(iter(live.tensors))
    values = other_values(live)
    with pytest.raises(AdapterRefused, match=f"lacks {name}"):
        hot_reload(model, {key: value for key, value in values.items() if key != name})
    with pytest.raises(AdapterRefused, match="has another, which"):
        hot_reload(model, {**values, "another": torch.zeros(1)})
    with pytest.raises(AdapterRefused, match=r"shape \(1,\)") as refused:
        hot_reload(model, {**values, name: torch.zeros(1)})
    assert refused.value.tensor == name
    assert all(not torch.equal(tensor, values[key]) for key, tensor in live.tensors.items() if "lora_A" in key)


@pytest.mark.parametrize(("r", "alpha", "error"), [(8, 16, 0.0), (8, 4, 0.0), (2, 4, None)])
def test_an_adapter_of_another_rank_or_scale_changes_the_model_alike(
    tmp_path: Path, r: int, alpha: int, error: float | None
) -> None:
    source = adapted(seed=5)
    train(source, optimizer_of(source), 10)
    source.save_pretrained(tmp_path)
    model = adapted(r=r, lora_alpha=alpha)
    fresh = model(**batch()).logits
    hot_reload(model, tmp_path)
    source.eval(), model.eval()
    wanted, got = source(**batch()).logits, model(**batch()).logits
    if error is not None:
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    else:  # the best half of it
        assert (got - wanted).norm() < 0.9 * (fresh - wanted).norm()
    optimizer = optimizer_of(model)
    losses = train(model, optimizer, 20)
    assert losses[-1] < losses[0]


def test_a_copy_is_kept_beside_and_neither_trained_nor_active(tmp_path: Path) -> None:
    model = adapted()
    optimizer = optimizer_of(model)
    live = LiveAdapter(model)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    first, second = other_values(live, 7), other_values(live, 8)
    random_before = torch.get_rng_state()
    hot_reload(model, first, optimizer, keep_as="global")
    assert torch.equal(torch.get_rng_state(), random_before)
    assert model.active_adapters == ["default"]
    assert {name for name, each in model.named_parameters() if each.requires_grad} == trained
    train(model, optimizer, 3)
    beside = LiveAdapter(model, "global")
    assert all(torch.equal(tensor, first[name]) for name, tensor in beside.tensors.items())
    hot_reload(model, second, optimizer, keep_as="global")
    assert all(torch.equal(tensor, second[name]) for name, tensor in beside.tensors.items())
    assert LiveAdapter(model).tensors.keys() == live.tensors.keys()
    model.save_pretrained(tmp_path)
    kept, _ = read_adapter(tmp_path / "global")
    assert all(torch.equal(kept[name], value) for name, value in second.items())
    with pytest.raises(InputError, match="the adapter being trained"):
        hot_reload(model, first, keep_as="default")


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(NotFoundError):
        hot_reload(adapted(), tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(AdapterRefused):
        hot_reload(adapted(), tmp_path)


@pytest.mark.parametrize("text", ["mix", "mix(0)", "mix(1.5)", "mix(-1)", "merge", ""])
def test_what_is_no_way_to_reload_is_said(text: str) -> None:
    with pytest.raises(InputError, match="reload is"):
        parse_share(text)
    assert (parse_share("replace"), parse_share("mix( .5 )"), parse_share("mix(1)")) == (1.0, 0.5, 1.0)
