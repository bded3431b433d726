"""Weights that are a pickle with a call in it: the call is not made, and the error names the file's folder."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tunefleet import workloads
from tunefleet.errors import TunefleetError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Source, torch, weights
    import torch

    from tunefleet.workloads.common.base_model import Source
    from tunefleet.workloads.engine import weights


SHIPPED = Path(workloads.__file__).parent / "assets" / "models" / "gsm8k-llama-2m"


class Call:
    """What unpickles by making a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path]]:
        return (Path.touch, (self.made,))


@pytest.mark.parametrize("saved", [partial(pickle.dumps, protocol=2), None], ids=["a plain pickle", "torch's archive"])
def test_weights_with_a_call_in_them_are_not_opened(tmp_path: Path, saved: Callable[[object], bytes] | None) -> None:
    made, folder = tmp_path / "made", tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    (folder / "model.safetensors").unlink()
    content = {"lm_head.weight": Call(made)}
    if saved is None:
        torch.save(content, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(saved(content))
    with pytest.raises(TunefleetError, match="pickle file that would run code"):
        weights.load(Source("theirs", str(folder)), {})
    assert not made.exists()
    with (folder / "pytorch_model.bin").open("rb") as file:
        if saved is not None:
            pickle.load(file)
            assert made.exists(), "the pickle would have done nothing anyway"
