from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import InputError, MachineError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global HARDWARE, Hardware, Kernels, choose, inspect
    pytest.importorskip("torch")

    from tunefleet.workloads.training.model.hardware import Hardware, Kernels, choose, inspect

    HARDWARE = {
        "CPU": Hardware("cpu"),
        "OLD": Hardware("cuda", "T4"),
        "NEW": Hardware("cuda", "H100", bf16=True, flash_attention=True, liger=True),
        "BARE": Hardware("cuda", "H100", bf16=True),
    }


pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("hardware", "wishes", "kernels"),
    [
        ("CPU", {}, ("float32", "sdpa", False, False)),
        ("CPU", {"bf16": True}, ("bfloat16", "sdpa", False, False)),
        ("OLD", {}, ("float32", "sdpa", False, False)),
        ("OLD", {"fp16": True}, ("float16", "sdpa", False, False)),
        ("BARE", {}, ("bfloat16", "sdpa", False, False)),
        ("NEW", {}, ("bfloat16", "flash_attention_2", True, True)),
        ("NEW", {"bf16": False}, ("float32", "sdpa", True, False)),
        ("NEW", {"attention": "eager", "liger": False}, ("bfloat16", "eager", False, False)),
    ],
)
def test_the_fastest_that_is_there_and_not_forbidden(
    hardware: str, wishes: dict[str, Any], kernels: tuple[str, str, bool, bool]
) -> None:
    assert choose(HARDWARE[hardware], **wishes) == Kernels(*kernels)


@pytest.mark.parametrize(
    ("hardware", "wishes", "error", "message"),
    [
        ("NEW", {"bf16": True, "fp16": True}, InputError, "both bf16 and fp16"),
        ("CPU", {"fp16": True}, MachineError, "fp16, which a CPU cannot"),
        ("OLD", {"bf16": True}, MachineError, "bf16, which T4 does not have"),
        ("BARE", {"liger": True}, MachineError, "liger-kernel"),
        ("CPU", {"attention": "flash_attention_2"}, MachineError, "flash-attn"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused(
    hardware: str, wishes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        choose(HARDWARE[hardware], **wishes)


def test_this_machine_can_be_looked_at() -> None:
    assert inspect().device in {"cpu", "cuda", "mps"}
