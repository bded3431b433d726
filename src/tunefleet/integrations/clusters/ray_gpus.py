"""Ray's names of GPUs: each node has a resource that is named after its GPU type.

The name is derived from the product name, `A100` from `NVIDIA A100-SXM4-80GB` and `GeForce-RTX-4090` from `NVIDIA
GeForce RTX 4090`; only the cluster knows which types exist. Source: `ray._private.accelerators.nvidia_gpu` of Ray 2.60;
only nodes with automatically detected GPUs have the resource.
"""

from __future__ import annotations

import re
from typing import Final

# Requested amount of the resource: a node has 1 of it, however many GPUs it has.
SHARE: Final = 0.001
PREFIX: Final = "accelerator_type:"
_MAKERS: Final = ("nvidia", "tesla")
_MODEL: Final = re.compile(r"(?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*")


def is_called(wanted: str, name: str) -> bool:
    """Return whether a name equals `hardware.gpu.type`, ignoring case, hyphens and manufacturer."""
    return _plain(wanted) == _plain(name)


def may_be(wanted: str, name: str) -> bool:
    """Return whether GPUs with a Ray name may match `hardware.gpu.type`, which may be a part of the product name.

    Ray drops everything after the model: `A100-SXM4-80GB` may be among its `A100`. Only whole words are compared,
    because an `H200` is not an `H20`.
    """
    want, has = _plain(wanted), _plain(name)
    return want in has or f" {has} " in f" {want} "


def name_of(wanted: str) -> str:
    """Return the name that Ray would give GPUs of which there is no node, by Ray's own rule."""
    text = " ".join(word for word in wanted.split() if word.lower() not in _MAKERS) or wanted
    text = text.upper() if text == text.lower() else text
    model = _MODEL.match(text)
    return "-".join((model.group() if model else text).split())


def _plain(name: str) -> str:
    return " ".join(word for word in name.lower().replace("-", " ").split() if word not in _MAKERS)
