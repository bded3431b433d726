"""A model with another one's tokenizer: the same weights, and what names special tokens follows the new tokenizer.

No row is added to the embeddings: a token without one is refused before (`tokens.check`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import ModelError
from tunefleet.spec.base import is_hub_name
from tunefleet.workloads.common import base_model, containment, hub_files
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.common.outputs import write_folder
from tunefleet.workloads.merging import vocabulary
from tunefleet.workloads.merging.plan import Plan
from tunefleet.workloads.merging.safetensors_reader import is_weights
from tunefleet.workloads.verification.tokenizer import CONFIGS, SPECIAL, Tokens

POINTER: Final = "model.tokenizer"
_WANTED: Final = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""What is fetched of a repository whose tokenizer is taken; no weights."""


def locate(name: str, given: str | None, workspace: Path) -> Source:
    """Find the tokenizer that takes the place of a model's.

    Raises:
        UnreachableError: If the hub does not answer.
    """
    if given is not None:
        folder = only_folder(unpacked_path(Path(given), workspace))
    elif is_hub_name(name):
        folder = hub_files.fetched(name, patterns=_WANTED)
    else:
        return base_model.locate(name, None)
    containment.check_model(folder)
    return Source(name, str(folder))


def moved(base: Path, tokens: Tokens) -> int | None:
    """Return how many tokens of a model's own tokenizer mean something else in the new one; null if it has none."""
    try:
        own = base_model.load_tokenizer(Source(base.name, str(base)))
    except ModelError:
        return None  # it has none that can be read: that may be why it gets another
    ids: dict[str, int] = tokens.tokenizer.get_vocab()
    return sum(ids.get(token) != at for token, at in own.get_vocab().items())


def write(base: Path, target: Path, tokenizer: Source, tokens: Tokens) -> None:
    """Write the model with its new tokenizer, whole or not at all."""
    words = vocabulary.Vocabulary(Path(tokenizer.path), tokenizer.identifier, tokens.count)
    nothing = Plan((), {}, 0, (), (False, False), 0)

    def fill(folder: Path) -> None:
        vocabulary.carry(base, folder, words, nothing)
        for path in sorted(base.iterdir()):
            if (
                path.is_file()
                and is_weights(path.name)
                and path.name.endswith((".safetensors", ".safetensors.index.json"))
            ):
                shutil.copyfile(path, folder / path.name)
        for name in CONFIGS:
            if (folder / name).is_file():
                _name_special(folder / name, tokens.tokenizer)

    write_folder(target, fill)


def _name_special(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a file name the special tokens of the new tokenizer; those of the old one mean something else now."""
    said: dict[str, Any] = json.loads(path.read_bytes())
    for block in (said, said.get("text_config")):
        if isinstance(block, dict):
            block |= {key: getattr(tokenizer, key) for key in SPECIAL if block is said or key in block}
    path.write_text(json.dumps(said, indent=2) + "\n", "utf-8")
