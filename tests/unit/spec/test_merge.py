"""What all stages share is merged with what one says: mappings merge, everything else replaces."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tunefleet.spec.documents.stages import _merge, merged_source
from tunefleet.spec.text import Path, Source

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3), max_leaves=12)
BLOCKS = st.dictionaries(st.sampled_from("abcd"), TREES, max_size=4)


def deep_merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return _merge(base, (), own, (), ())[0]


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return what is no mapping, and empty mappings."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {at: leaf for key, inner in value.items() for at, leaf in leaves(inner, (*path, key)).items()}


@given(BLOCKS, BLOCKS)
def test_merging(base: dict[str, Any], own: dict[str, Any]) -> None:
    before = copy.deepcopy((base, own))
    merged = deep_merge(base, own)
    assert (base, own) == before
    for key in base.keys() | own.keys():
        if isinstance(base.get(key), dict) and isinstance(own.get(key), dict):
            assert merged[key] == deep_merge(base[key], own[key])
        else:
            assert merged[key] == (own if key in own else base)[key]
    assert deep_merge(merged, own) == merged


@given(BLOCKS)
def test_nothing_changes_nothing(block: dict[str, Any]) -> None:
    assert deep_merge(block, {}) == block == deep_merge({}, block)


@given(BLOCKS, BLOCKS)
def test_every_value_is_found_where_it_was_written(base: dict[str, Any], own: dict[str, Any]) -> None:
    document = {"spec": {**base, "stages": [{"spec": own}]}}
    merged = merged_source(Source(document), base, own, ("spec", "stages", 0, "spec"))
    for path, leaf in leaves(merged.data["spec"]).items():
        if not path:
            continue
        origin = merged.origin(("spec", *path))
        value: Any = document
        for part in origin:
            value = value[part]
        assert value == leaf or (leaf == {} and value == {})
        assert origin[-1] == path[-1]
