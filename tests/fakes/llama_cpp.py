"""A double of llama.cpp's converter: it takes its arguments, refuses tokenizers as it does, and converts nothing."""

from __future__ import annotations

import sys
from pathlib import Path

_CONVERTER = """
# A double of llama.cpp's converter.
import sys, time
class ModelBase: pass
class TextModel(ModelBase):
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError("BPE pre-tokenizer was not recognized - update get_vocab_base_pre()")
def main():
    out = sys.argv[sys.argv.index("--outfile") + 1]
    said = TextModel().get_vocab_base_pre(None)
    with open(out, "wb") as file:
        file.write(b"GG")
        file.flush()
        time.sleep(SECONDS)
        file.write(b"UF" + said.encode() + sys.argv[sys.argv.index("--outtype") + 1].encode())
"""


def make(folder: Path, *, takes_s: float = 0.0) -> Path:
    """Write a folder of llama.cpp with a double of its converter, and an interpreter that has what that needs.

    Args:
        folder: It must not be there.
        takes_s: How long half a file lies there.
    """
    (folder / "gguf-py").mkdir(parents=True)
    (folder / "convert_hf_to_gguf.py").write_text(_CONVERTER.replace("SECONDS", repr(takes_s)))
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (folder / "sentencepiece").mkdir()
    (folder / "sentencepiece" / "__init__.py").touch()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder
