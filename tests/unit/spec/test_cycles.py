"""Tasks that wait for each other are found, each circle once, and everything else has an order."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.spec.documents.dependencies import cycles, layers

NAMES = st.sampled_from("abcdefgh")
GRAPHS = st.dictionaries(NAMES, st.lists(NAMES, max_size=4), max_size=8)


def has_circle(waits: dict[str, list[str]]) -> bool:
    inner = {name: [each for each in above if each in waits] for name, above in waits.items()}
    try:
        TopologicalSorter(inner).prepare()
    except CycleError:
        return True
    return False


@given(GRAPHS)
def test_circles_are_found_if_and_only_if_there_is_no_order(waits: dict[str, list[str]]) -> None:
    found = cycles(waits)
    assert bool(found) == has_circle(waits)
    for circle in found:
        assert all(after in waits[name] for name, after in zip(circle, [*circle[1:], circle[0]], strict=True))
    together = [name for circle in found for name in circle]
    assert len(together) == len(set(together))
    without = {name: above for name, above in waits.items() if name not in together}
    assert not has_circle(without)


@given(GRAPHS)
def test_a_layer_waits_only_for_layers_before_it(waits: dict[str, list[str]]) -> None:
    if has_circle(waits):
        with pytest.raises(ValueError, match="no layers"):
            layers(waits)
        return
    found = layers(waits)
    depth = {name: at for at, layer in enumerate(found) for name in layer}
    assert depth.keys() == waits.keys()
    for name, above in waits.items():
        inside = [depth[each] for each in above if each in waits]
        assert depth[name] == max(inside, default=-1) + 1
