"""Uploads in 8 bits: how much rounding may take away, and that over the rounds nothing is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.unit.federation.adapters import factors
from tunefleet.errors import AdapterRefused
from tunefleet.federation import AdapterFile, write_tensors
from tunefleet.federation.quantize import GROUP, UPLOAD_DTYPE, packed, unpack, unpacked, write_int8
from tunefleet.federation.safetensors_writer import AdapterWriter


def _load(path: Path) -> dict[str, np.ndarray]:
    with AdapterFile(path) as file:
        return {name: file.whole(name) for name in file.tensors}


def test_a_file_goes_there_and_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {**factors(rng), "long": rng.standard_normal((3, 70_001)).astype(np.float32)}
    lost = write_int8(tmp_path / "packed", values)
    unpack(tmp_path / "packed", tmp_path / "plain")
    found = _load(tmp_path / "plain")
    assert list(found) == list(values)
    for name, each in values.items():
        assert np.array_equal(each - found[name], lost[name])
        assert np.abs(lost[name]).max() <= np.abs(each).max() / 254 * 1.001
    assert (tmp_path / "packed").stat().st_size < (tmp_path / "plain").stat().st_size * 0.27


@given(arrays(np.float32, st.integers(0, 600), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_no_value_is_off_by_more_than_half_a_step(values: np.ndarray) -> None:
    small, scales = packed(values)
    assert small.dtype == np.int8
    assert len(scales) == -(-len(values) // GROUP)
    found = unpacked(small, scales)
    step = np.repeat(np.maximum(scales, np.finfo(np.float32).tiny), GROUP)[: len(values)]
    # A group whose scale is no normal number counts as zero: 127 of the smallest normal ones.
    most = np.where(np.repeat(scales, GROUP)[: len(values)] > 0, step / 2 * 1.0001, 127 * np.finfo(np.float32).tiny)
    assert (np.abs(values - found) <= most).all()
    assert (found[values == 0] == 0).all()


def test_the_largest_of_a_group_comes_back_as_it_was() -> None:
    values = np.concatenate([np.linspace(-1, 1, GROUP), np.linspace(-100, 50, GROUP)]).astype(np.float32)
    found = unpacked(*packed(values))
    assert found[[0, GROUP - 1, GROUP]] == pytest.approx(values[[0, GROUP - 1, GROUP]], rel=1e-6)


def test_with_feedback_nothing_is_lost_over_the_rounds(tmp_path: Path) -> None:
    """A value under half a step is rounded to zero each time; with feedback its mean is right all the same."""
    values = {"x": np.full(GROUP, 0.001, np.float32)}
    values["x"][0] = 1.0
    totals = {True: np.zeros(GROUP), False: np.zeros(GROUP)}
    for fed in (True, False):
        kept: dict[str, np.ndarray] | None = None
        for _ in range(40):
            lost = write_int8(tmp_path / "packed", values, kept)
            kept = lost if fed else None
            unpack(tmp_path / "packed", tmp_path / "plain")
            totals[fed] += _load(tmp_path / "plain")["x"]
    assert totals[False][1] == 0
    assert totals[True][1] / 40 == pytest.approx(0.001, rel=0.2)
    assert totals[True][0] / 40 == pytest.approx(1.0, rel=1e-3)


def test_feedback_of_another_shape_is_left_out(tmp_path: Path) -> None:
    values = {"x": np.ones(4, np.float32)}
    write_int8(tmp_path / "packed", values, {"x": np.ones(5, np.float32), "y": np.ones(1, np.float32)})
    unpack(tmp_path / "packed", tmp_path / "plain", dtype="BF16")
    assert _load(tmp_path / "plain")["x"].tolist() == [1, 1, 1, 1]


def test_what_is_not_finite_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match="not finite"):
        write_int8(tmp_path / "packed", {"x": np.array([1, np.nan], np.float32)})
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"x.int8": ("I8", (4,))}, "not have one scale per 256"),
        ({"x.int8": ("I8", (300,)), "x.scale": ("F32", (1,))}, "not have one scale per 256"),
        ({"x.int8": ("I8", (4,)), "x.scale": ("F16", (1,))}, "not have one scale per 256"),
        ({"x.scale": ("F16", (1,))}, "'x.scale' does not belong to an 8-bit upload"),
        ({"x.scale": ("F32", (1,))}, "a scale without values"),
        ({"x": ("F32", (1,))}, "'x' does not belong to an 8-bit upload"),
        ({"x.int8": ("F32", (1,)), "x.scale": ("F32", (1,))}, "'x.int8' does not belong to an 8-bit upload"),
    ],
)
def test_an_upload_that_lies_is_refused(
    tmp_path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]], words: str
) -> None:
    with AdapterWriter(tmp_path / "packed", tensors, {UPLOAD_DTYPE: "int8"}):
        pass
    with pytest.raises(AdapterRefused) as caught:
        unpack(tmp_path / "packed", tmp_path / "plain")
    assert words in str(caught.value)
    assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scale_that_is_no_size_is_refused(tmp_path: Path, scale: float) -> None:
    tensors = {"x.int8": ("I8", (4,)), "x.scale": ("F32", (1,))}
    with AdapterWriter(tmp_path / "packed", tensors, {UPLOAD_DTYPE: "int8"}) as written:
        written.raw("x.scale", 0, np.array([scale], "<f4"))
    with pytest.raises(AdapterRefused, match="has an invalid scale"):
        unpack(tmp_path / "packed", tmp_path / "plain")


def test_a_plain_file_is_not_unpacked(tmp_path: Path) -> None:
    write_tensors(tmp_path / "plain", {"x": np.ones(3, np.float32)})
    with pytest.raises(AdapterRefused, match="lacks tunefleet"):
        unpack(tmp_path / "plain", tmp_path / "out")
