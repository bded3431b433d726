"""Makes a tiny model of sentence-transformers: `python -m tests.making.sentence_model FOLDER`.

A bag of words on the built-in tokenizer: each token has a random vector of its own, drawn from a fixed seed, and a
text has their mean. So texts with words in common are near, and the files are the same wherever they are made.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

DIMENSION = 48


def make(folder: Path, *, dimension: int = DIMENSION, seed: int = 0) -> Path:
    """Write the model into a folder, as `SentenceTransformer.save` does; returns the folder."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer

    from tunefleet.workloads import assets

    folder.mkdir(parents=True, exist_ok=True)
    words = assets.locate("builtin:gsm8k-llama-2m", "model") / "tokenizer.json"
    shutil.copy(words, folder / "tokenizer.json")
    count = Tokenizer.from_file(str(words)).get_vocab_size()
    weights = np.random.default_rng(seed).standard_normal((count, dimension), dtype=np.float32)
    save_file({"embedding.weight": weights}, folder / "model.safetensors")
    static = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": static}]))
    about = {"model_type": "SentenceTransformer", "prompts": {}, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
