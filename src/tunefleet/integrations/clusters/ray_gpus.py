"""How Ray calls GPUs: each of its nodes has a resource that names the type of its GPUs.

The name is made of the product's, `A100` of `NVIDIA A100-SXM4-80GB` and `GeForce-RTX-4090` of `NVIDIA GeForce RTX
4090`; which ones there are only the cluster knows.

Source: `ray._private.accelerators.nvidia_gpu` of Ray 2.60; the resource is there on a node of which Ray has found the
GPUs by itself.
"""

from __future__ import annotations

import re
from typing import Final

# What is asked of such a resource: a node has 1 of it, however many GPUs it has.
SHARE: Final = 0.001
PREFIX: Final = "accelerator_type:"
_MAKERS: Final = ("nvidia", "tesla")
_MODEL: Final = re.compile(r"(?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*")


def is_called(wanted: str, name: str) -> bool:
    """Whether a name is just what `hardware.gpu.type` says, whatever its case, hyphens and maker."""
    return _plain(wanted) == _plain(name)


def may_be(wanted: str, name: str) -> bool:
    """Whether GPUs of which Ray knows the name may be what `hardware.gpu.type` says, as for any worker a part of it.

    Ray leaves out what follows the model: `A100-SXM4-80GB` may be among what it calls `A100`. That goes by whole words,
    for an `H200` is no `H20`.
    """
    want, has = _plain(wanted), _plain(name)
    return want in has or f" {has} " in f" {want} "


def name_of(wanted: str) -> str:
    """Return how Ray would call GPUs of which no node is there, by its own rule."""
    text = " ".join(word for word in wanted.split() if word.lower() not in _MAKERS) or wanted
    text = text.upper() if text == text.lower() else text
    model = _MODEL.match(text)
    return "-".join((model.group() if model else text).split())


def _plain(name: str) -> str:
    return " ".join(word for word in name.lower().replace("-", " ").split() if word not in _MAKERS)
