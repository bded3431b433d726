"""The page of results says that a key that is not listed is not there: each kind must stand on it."""

from __future__ import annotations

import ast
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tunefleet.executors.api import ApiExecutor
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.executors.registry import GROUP
from tunefleet.testing.job_runner import offer_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
WORKLOADS = ROOT / "src" / "tunefleet" / "workloads"
LIBRARIES = {"torch", "transformers", "trl"}
"""Of which `used` has the versions."""


def sections() -> dict[str, str]:
    """The text under each heading, by each kind that it names."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    return {kind: text for names, text in zip(parts[::2], parts[1::2], strict=True) for kind in names.split(", ")}


def test_every_kind_has_a_heading() -> None:
    ours = {point.name for point in entry_points(group=GROUP) if point.value.startswith("tunefleet.")}
    assert "lora_sft" in ours
    assert ours == sections().keys()


WRITERS = {
    "sft": ("training/summary.py", "training/report.py"),
    "lora_sft": ("external_trainers/run.py",),
    "dpo": ("preference/run.py",),
    "ppo": ("ppo/run.py::_build_result", "ppo/run.py::_series"),
}
"""Files, or functions of a file that has other mappings, too."""


@pytest.mark.parametrize("kind", WRITERS)
def test_every_key_of_a_training_is_listed(kind: str) -> None:
    written = {
        key.value
        for file, _, only in (writer.partition("::") for writer in WRITERS[kind])
        for function in ast.walk(ast.parse((WORKLOADS / file).read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and (not only or function.name == only)
        for each in ast.walk(function)
        if isinstance(each, ast.Dict)
        for key in each.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    } - LIBRARIES
    assert len(written) > 8
    assert {key for key in written if not re.search(rf"`{key}(\[\])?`", sections()[kind])} == set()


def test_every_key_of_a_light_result_is_listed() -> None:
    echo = EchoExecutor().run(offer_of(EchoExecutor.kind, {"data": {"type": "list", "items": ["a"]}}))
    assert {key for key in echo if f"`{key}" not in sections()["echo"]} == set()
    assert {"error", "failed"} <= set(re.findall(r"\w+", sections()[ApiExecutor.kind]))
