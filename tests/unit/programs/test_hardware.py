from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from tunefleet.errors import InputError, MachineError
from tunefleet.programs.train.hardware import Hardware, Kernels, choose, inspect

pytestmark = pytest.mark.torch
CPU = Hardware("cpu")
OLD = Hardware("cuda", "T4")
NEW = Hardware("cuda", "H100", bf16=True, flash_attention=True, liger=True)
BARE = Hardware("cuda", "H100", bf16=True)


@pytest.mark.parametrize(
    ("hardware", "wishes", "kernels"),
    [
        (CPU, {}, Kernels("float32", "sdpa", liger=False, varlen=False)),
        (CPU, {"bf16": True}, Kernels("bfloat16", "sdpa", liger=False, varlen=False)),
        (OLD, {}, Kernels("float32", "sdpa", liger=False, varlen=False)),
        (OLD, {"fp16": True}, Kernels("float16", "sdpa", liger=False, varlen=False)),
        (BARE, {}, Kernels("bfloat16", "sdpa", liger=False, varlen=False)),
        (NEW, {}, Kernels("bfloat16", "flash_attention_2", liger=True, varlen=True)),
        (NEW, {"bf16": False}, Kernels("float32", "sdpa", liger=True, varlen=False)),
        (NEW, {"attention": "eager", "liger": False}, Kernels("bfloat16", "eager", liger=False, varlen=False)),
    ],
)
def test_the_fastest_that_is_there_and_not_forbidden(
    hardware: Hardware, wishes: dict[str, Any], kernels: Kernels
) -> None:
    assert choose(hardware, **wishes) == kernels


@pytest.mark.parametrize(
    ("hardware", "wishes", "error", "message"),
    [
        (NEW, {"bf16": True, "fp16": True}, InputError, "bf16 and fp16 at once"),
        (CPU, {"fp16": True}, MachineError, "fp16, which a CPU cannot"),
        (OLD, {"bf16": True}, MachineError, "bf16, which T4 does not have"),
        (BARE, {"liger": True}, MachineError, "liger-kernel"),
        (CPU, {"attention": "flash_attention_2"}, MachineError, "flash-attn"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused(
    hardware: Hardware, wishes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        choose(hardware, **wishes)


def test_this_machine_can_be_looked_at() -> None:
    assert inspect().device in {"cpu", "cuda", "mps"}
