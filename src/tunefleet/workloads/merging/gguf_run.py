"""Runs llama.cpp's converter unchanged, except that it accepts the pre-tokenizers of custom vocabularies.

The converter recognises a tokenizer by its output for one text, so it knows only published vocabularies: a custom one
is rejected even if llama.cpp splits text in the same way. If the tokenizer's own configuration matches a pre-tokenizer
of llama.cpp exactly, its name is used; otherwise the converter's error stands.

Run by file name in the converter's interpreter, which may lack this package: `gguf_run.py SCRIPT ARGUMENTS…`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def splitting(folder: Path) -> str | None:
    """Return llama.cpp's name for a tokenizer's pre-tokenizer; None if there is no exact match."""
    try:
        tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if tokenizer.get("normalizer") is not None or tokenizer.get("model", {}).get("type") != "BPE":
        return None
    before = tokenizer.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", []) if before.get("type") == "Sequence" else [before]
    shape = [_shape(step) for step in steps]
    if shape == ["bytes"]:
        return "gpt-2"
    return "smollm" if shape == ["digits", "bytes"] else None


def _shape(step: dict[str, Any]) -> str:
    if step.get("type") == "ByteLevel" and step.get("use_regex", True) and not step.get("add_prefix_space"):
        return "bytes"
    return "digits" if step.get("type") == "Digits" and step.get("individual_digits") else "other"


def _teach(module: Any, name: str) -> None:
    classes = [module.ModelBase]
    while classes:
        each = classes.pop()
        classes += each.__subclasses__()
        if "get_vocab_base_pre" in vars(each):
            each.get_vocab_base_pre = _or(each.get_vocab_base_pre, name)


def _or(known: Any, name: str) -> Any:
    def answer(self: Any, tokenizer: Any) -> str:
        try:
            return str(known(self, tokenizer))
        except NotImplementedError:
            print(f"The tokenizer matches the pre-tokenizer {name}.")
            return name

    return answer


def main() -> None:
    """Run the converter with the arguments after its path."""
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    # Instead of the folder of this file, whose modules have names of the converter's packages.
    sys.path[0] = str(script.parent)
    spec = importlib.util.spec_from_file_location("convert_hf_to_gguf", script)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{script} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules["convert_hf_to_gguf"] = module
    spec.loader.exec_module(module)
    name = splitting(Path(sys.argv[-1]))
    if name is not None and hasattr(module, "ModelBase"):
        _teach(module, name)
    module.main()


if __name__ == "__main__":
    main()
