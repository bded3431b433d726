"""Locates a base model, its tokenizer and its context length; weights are loaded in `training.model.assembly`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import ModelError
from tunefleet.spec.base import is_written_as_path
from tunefleet.spec.options.model import ModelSource
from tunefleet.workloads import assets
from tunefleet.workloads.common import containment, hub_files

_EMBEDDINGS: Final = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
# The key in a job's inputs for a model that was uploaded with the task or comes from another task.
POINTER: Final = "model.source.identifier"


@dataclass(frozen=True, slots=True)
class Source:
    """The location of a model."""

    identifier: str
    path: str
    revision: str | None = None
    trust_remote_code: bool = False


def locate(
    identifier: str, local: str | None, *, revision: str | None = None, trust_remote_code: bool = False
) -> Source:
    """Locate a model: built in, a local folder, or on the Hub.

    Raises:
        UnreachableError: If the Hub does not respond and the model is not in the cache.
    """
    if assets.is_builtin(identifier):
        path = str(assets.locate(identifier, "model"))
    elif local is not None or is_written_as_path(identifier):
        folder = Path(local or identifier).expanduser()
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"The model folder {identifier} has no config.json.",
                hint="Use a folder written by `save_pretrained`.",
            )
        containment.check_model(folder)
        path = str(folder)
    else:
        path, revision = hub_files.resolve(identifier, "model", revision)
        # The small files are checked before Transformers downloads the weights and opens anything they name.
        cached = Path(path) if path != identifier else None
        containment.check_model(cached or hub_files.download_files(identifier, revision, containment.READ))
    return Source(identifier, path, revision, trust_remote_code)


def locate_named(
    source: ModelSource,
    inputs: Mapping[str, str],
    workspace: Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Source:
    """Locate the model that a spec names, or the input that replaces it.

    Raises:
        UnreachableError: If the Hub does not respond and the model is not in the cache.
    """
    local = inputs.get(POINTER)
    folder = None if local is None else str(only_folder(unpacked_path(Path(local), workspace)))
    wanted = source.revision or revision
    return locate(source.identifier, folder, revision=wanted, trust_remote_code=trust_remote_code)


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """Load the tokenizer, with right padding and a padding token."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise loading_error("tokenizer", source, error) from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelError(f"The tokenizer of {source.identifier} has neither a padding token nor an end token.")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def context_length(source: Source) -> int | None:
    """Return the context length of the model; `None` if its config does not have it."""
    length = getattr(_config(source), "max_position_embeddings", None)
    return length if isinstance(length, int) else None


def embedding_rows(source: Source) -> int | None:
    """Return the number of rows of the model's embedding; `None` if its config does not have it."""
    size = getattr(_config(source), "vocab_size", None)
    return size if isinstance(size, int) else None


def require_same_vocabulary(adapter: Path, rows: int, label: str) -> None:
    """Refuse an adapter with embeddings for another vocabulary size, which PEFT cannot load onto the model."""
    weights = adapter / "adapter_model.safetensors"
    if not weights.is_file():
        return
    try:
        with safe_open(str(weights), framework="numpy") as file:
            names = [name for name in file.keys() if name.endswith(_EMBEDDINGS)]  # noqa: SIM118 - it is no mapping
            own = {file.get_slice(name).get_shape()[0] for name in names}
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The weights of the adapter {label} cannot be read: {error}", hint="Download or create it again."
        ) from error
    if own - {rows}:
        raise ModelError(
            f"Adapter {label} has embeddings for {max(own):,} tokens, but the model has {rows:,}.",
            hint="Merge it into the base model with a `merge` task, then use the merged model.",
        )


def _config(source: Source) -> Any:
    try:
        config = AutoConfig.from_pretrained(
            source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise loading_error("model", source, error) from error
    return config.get_text_config()


def loading_error(what: str, source: Source, error: Exception) -> ModelError:
    """Return the error of a part of a model that cannot be loaded, with the first line of the library's message."""
    if isinstance(error, UnpicklingError):
        # Not the library's message, which explains how to run the code anyway.
        return ModelError(
            f"The weights of {source.identifier} are a pickle file that would run code; it was not opened.",
            hint="Use weights in safetensors format from a source that you trust.",
        )
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(
        f"The {what} of {source.identifier} cannot be loaded: {reason}",
        hint="Check that the folder or Hub repository contains a causal language model with its tokenizer.",
        detail=str(error),
    )
