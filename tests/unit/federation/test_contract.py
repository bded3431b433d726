"""Before an update counts it is held against the federation's contract; each refusal names tensor and reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.federation.adapters import PREFIX, SHAPES, Arrays, Q, factors, products, save
from tunefleet.artifacts import hash_file
from tunefleet.errors import AdapterRefused
from tunefleet.federation import (
    AdapterFile,
    Checked,
    Contract,
    Update,
    check,
    check_asked,
    config_of,
    contract_of,
    write_tensors,
)
from tunefleet.spec.options.federation_options import FederationSpec

A_OF_Q = f"{PREFIX}{Q}.lora_A.weight"
B_OF_Q = f"{PREFIX}{Q}.lora_B.weight"
HEAD = f"{PREFIX}lm_head.weight"


def _contract(update: Update) -> Contract:
    with AdapterFile(update.path) as file:
        return Contract.from_json(contract_of(update.config, file).to_json())


def _check(contract: Contract, update: Update, *, mixed_ranks: bool = False) -> Checked:
    with AdapterFile(update.path) as file:
        return check(contract, update.config, file, mixed_ranks=mixed_ranks)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def contract(tmp_path: Path, rng: np.random.Generator) -> Contract:
    return _contract(save(tmp_path / "first", factors(rng)))


def test_an_update_like_the_first_passes_and_is_measured(
    tmp_path: Path, contract: Contract, rng: np.random.Generator
) -> None:
    update = save(tmp_path / "x", factors(rng))
    found = _check(contract, update)
    true = {module: float(np.linalg.norm(each)) for module, each in products(tmp_path / "x").items()}
    assert found.norms == pytest.approx(true, rel=1e-6)
    assert found.norm == pytest.approx(np.hypot(*true.values()), rel=1e-6)
    assert (found.rank, found.dtypes, found.parameters) == (2, ("F32",), 2 * (7 + 5 + 6 + 9))
    assert found.size_bytes == update.path.stat().st_size


def test_equal_values_have_equal_digests_whatever_the_file_looks_like(
    tmp_path: Path, contract: Contract, rng: np.random.Generator
) -> None:
    arrays = factors(rng)
    one = save(tmp_path / "one", arrays)
    other = save(tmp_path / "other", arrays)
    write_tensors(other.path, dict(reversed(arrays.items())), metadata={"made": "later"})
    assert one.path.read_bytes() != other.path.read_bytes()
    assert _check(contract, one).digest == _check(contract, other).digest
    own = hash_file(one.path)[0]
    assert _check(contract, one).digest == own, "as safetensors writes it"
    with AdapterFile(other.path) as file:
        assert check(contract, other.config, file, sha256=hash_file(other.path)[0]).digest == own
    arrays[A_OF_Q][0, 0] += 1
    assert _check(contract, save(tmp_path / "third", arrays)).digest != _check(contract, one).digest


def test_the_norm_of_values_whose_squares_are_beyond_float32(
    tmp_path: Path, contract: Contract, rng: np.random.Generator
) -> None:
    arrays = {name: (1e25 if "lora_A" in name else 1e-30) * each for name, each in factors(rng).items()}
    found = _check(contract, save(tmp_path / "x", arrays))
    true = {module: float(np.linalg.norm(each)) for module, each in products(tmp_path / "x").items()}
    assert found.norms == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("small", [1e-18, 1e-25, 1e-36])
def test_the_norm_of_values_whose_squares_are_below_float32(
    tmp_path: Path, contract: Contract, rng: np.random.Generator, small: float
) -> None:
    arrays = {name: each * np.float32(small if "lora_B" in name else 1.0) for name, each in factors(rng).items()}
    found = _check(contract, save(tmp_path / "x", arrays))
    true = {module: float(np.linalg.norm(each)) for module, each in products(tmp_path / "x").items()}
    assert found.norms == pytest.approx(true, rel=1e-5, abs=0.0)


def test_the_norm_is_zero_where_b_is(tmp_path: Path, contract: Contract, rng: np.random.Generator) -> None:
    arrays = {name: each * ("lora_A" in name) for name, each in factors(rng).items()}
    assert _check(contract, save(tmp_path / "x", arrays)).norm == 0.0


def _put(name: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.__setitem__(name, value)


def _spoil(value: float) -> Callable[[Arrays], None]:
    return lambda arrays: arrays[B_OF_Q].__setitem__((3, 1), value)


@pytest.mark.parametrize(
    ("change", "tensor", "words"),
    [
        (lambda arrays: [arrays.pop(name) for name in (A_OF_Q, B_OF_Q)], A_OF_Q, "is missing"),
        (lambda arrays: arrays.pop(B_OF_Q), A_OF_Q, "has no matching B"),
        (_put(A_OF_Q, np.ones((2, 6), np.float32)), A_OF_Q, "has 6 columns; this federation requires 5"),
        (_put(B_OF_Q, np.ones((8, 2), np.float32)), B_OF_Q, "has 8 rows; this federation requires 7"),
        (_put(B_OF_Q, np.ones((7, 3), np.float32)), B_OF_Q, "has rank 3, but its A has rank 2"),
        (_put(A_OF_Q, np.ones((1, 5), np.float32)), B_OF_Q, "has rank 2, but its A has rank 1"),
        (_put(A_OF_Q, np.ones((2, 5, 1, 1), np.float32)), A_OF_Q, "has 4 dimensions"),
        (_put(A_OF_Q, np.ones((0,), np.float32)), A_OF_Q, "has 1 dimensions"),
        (_put(A_OF_Q, np.ones((0, 5), np.float32)), A_OF_Q, "is empty"),
        (_put(f"{PREFIX}{Q}.lora_magnitude_vector", np.ones(7, np.float32)), None, "DoRA"),
        (
            _put(f"{PREFIX}{Q}.lora_A.default.weight", np.ones((2, 5), np.float32)),
            None,
            "contains an adapter name",
        ),
        (_put(f"{PREFIX}{Q}.bias", np.ones(7, np.float32)), f"{PREFIX}{Q}.bias", "is not supported"),
        (
            _put(f"{Q}.lora_A.weight", np.ones((2, 5), np.float32)),
            f"{Q}.lora_A.weight",
            "does not start with base_model",
        ),
        (_put(HEAD, np.ones((3, 3), np.float32)), HEAD, "is not part of this federation"),
        (_spoil(np.nan), B_OF_Q, "is not finite: the value at [3, 1] is nan"),
        (_spoil(-np.inf), B_OF_Q, "is not finite: the value at [3, 1] is -inf"),
    ],
)
def test_a_refusal_names_the_tensor_and_why(
    tmp_path: Path,
    contract: Contract,
    rng: np.random.Generator,
    change: Callable[[Arrays], None],
    tensor: str | None,
    words: str,
) -> None:
    arrays = factors(rng)
    change(arrays)
    update = save(tmp_path / "x", {})
    _write_unchecked(update.path, arrays)
    with pytest.raises(AdapterRefused) as caught:
        _check(contract, update)
    assert words in str(caught.value)
    if tensor is not None:
        assert caught.value.tensor == tensor
        assert repr(tensor) in caught.value.message


def _write_unchecked(path: Path, arrays: Arrays) -> None:
    """Write what our own writer would refuse."""
    from tunefleet.federation.header import write_header

    head, _ = write_header({name: ("F32", each.shape) for name, each in arrays.items()}, {})
    path.write_bytes(head + b"".join(np.ascontiguousarray(each, "<f4").tobytes() for each in arrays.values()))


def test_another_rank_is_refused_unless_ranks_may_differ(
    tmp_path: Path, contract: Contract, rng: np.random.Generator
) -> None:
    update = save(tmp_path / "x", factors(rng, 3), rank=3)
    with pytest.raises(AdapterRefused, match=r"rank \(r\) is 3; this federation's is 2"):
        _check(contract, update)
    assert _check(contract, update, mixed_ranks=True).rank == 3


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"alpha": 8}, "lora_alpha is 8.0; this federation's is 4.0"),
        ({"use_rslora": True}, "use_rslora is True"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
    ],
)
def test_another_scale_is_refused_unless_it_may_differ(
    tmp_path: Path, contract: Contract, rng: np.random.Generator, more: dict[str, Any], words: str
) -> None:
    update = save(tmp_path / "x", factors(rng), **more)
    with pytest.raises(AdapterRefused, match=words):
        _check(contract, update)
    _check(contract, update, mixed_ranks=True)


def test_a_rank_that_is_not_the_configs_is_refused(
    tmp_path: Path, contract: Contract, rng: np.random.Generator
) -> None:
    update = save(tmp_path / "x", factors(rng, 3))
    with pytest.raises(AdapterRefused, match="has rank 3, but the adapter's config says 2"):
        _check(contract, update)


def test_a_layer_too_many_is_refused_with_both_lists_of_targets(
    tmp_path: Path, contract: Contract, rng: np.random.Generator
) -> None:
    shapes = {**SHAPES, "model.layers.0.mlp.up_proj": (4, 4), "model.layers.1.mlp.up_proj": (4, 4)}
    update = save(tmp_path / "x", factors(rng, shapes=shapes), target_modules=["q_proj", "v_proj", "up_proj"])
    with pytest.raises(AdapterRefused) as caught:
        _check(contract, update)
    assert "layers.0.mlp.up_proj.lora_A.weight' (and 1 more) is not part of this federation" in str(caught.value)
    assert "Its target_modules are q_proj, up_proj, v_proj; the federation's are q_proj, v_proj" in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        ("meta/llama", "meta/llama", True),
        ("meta/llama", "meta/other", False),
        ("meta/llama", "their/llama", False),
        ("/models/llama", "/home2/me/llama", True),
        ("meta/llama", "/models/llama", True),
        ("meta/llama", "C:\\models\\llama", True),
        ("/models/llama", "/models/other", False),
        ("./llama", "llama", True),
        ("llama", "other", False),
        (None, "anything", True),
        ("llama", None, False),
    ],
)
def test_the_base_model_is_compared_and_of_a_path_its_last_part(
    tmp_path: Path, rng: np.random.Generator, wanted: str | None, found: str | None, fits: bool
) -> None:
    contract = _contract(save(tmp_path / "first", factors(rng), base_model_name_or_path=wanted))
    update = save(tmp_path / "x", factors(rng), base_model_name_or_path=found)
    if fits:
        _check(contract, update)
        return
    with pytest.raises(AdapterRefused, match="base model" if found is None else "was trained on"):
        _check(contract, update)


def test_layers_that_are_trained_whole_belong_to_the_contract(tmp_path: Path, rng: np.random.Generator) -> None:
    head = rng.standard_normal((3, 4)).astype(np.float32)
    more = {"modules_to_save": ["lm_head"]}
    contract = _contract(save(tmp_path / "first", {**factors(rng), HEAD: head}, **more))
    assert contract.whole == {HEAD: (3, 4)}
    _check(contract, save(tmp_path / "other", {**factors(rng), HEAD: head + 1}, **more))
    with pytest.raises(AdapterRefused, match=r"lm_head\.weight' is missing"):
        _check(contract, save(tmp_path / "without", factors(rng), **more))
    with pytest.raises(AdapterRefused, match=r"has the shape \(4, 3\); this federation requires \(3, 4\)"):
        _check(contract, save(tmp_path / "turned", {**factors(rng), HEAD: head.T.copy()}, **more))


def test_what_peft_saves_of_the_base_model_must_be_the_same_everywhere(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    base = f"{PREFIX}model.embed_tokens.base_layer.weight"
    table = rng.standard_normal((6, 4)).astype(np.float32)
    contract = _contract(save(tmp_path / "first", {**factors(rng), base: table}))
    assert list(contract.frozen) == [base]
    _check(contract, save(tmp_path / "same", {**factors(rng), base: table}))
    with pytest.raises(AdapterRefused, match="belongs to the base model, but differs"):
        _check(contract, save(tmp_path / "other", {**factors(rng), base: table + 1e-3}))


def test_the_first_update_is_held_against_what_the_federation_asks_for() -> None:
    spec = FederationSpec.model_validate(
        {"base_model": "meta/llama", "lora": {"r": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"]}}
    )
    base = {
        "peft_type": "LORA",
        "base_model_name_or_path": "meta/llama",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["v_proj", "q_proj"],
    }
    check_asked(spec, config_of(base))
    for more, words in (
        ({"r": 4}, "rank"),
        ({"lora_alpha": 32}, "lora_alpha"),
        ({"use_rslora": True}, "use_rslora"),
        ({"target_modules": ["q_proj"]}, "target_modules"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"base_model_name_or_path": "meta/other"}, "meta/other"),
    ):
        with pytest.raises(AdapterRefused, match=words):
            check_asked(spec, config_of({**base, **more}))
    mixed = FederationSpec.model_validate(
        {**spec.model_dump(exclude_none=True), "mixed_ranks": True, "strategy": {"name": "fedavg_exact"}}
    )
    check_asked(mixed, config_of({**base, "r": 4, "lora_alpha": 4}))
