"""Find a model or dataset of the Hugging Face hub, and say quickly and clearly if that is impossible.

Left to themselves the libraries try an unreachable hub for most of a minute. One short question tells whether the name
exists and the hub answers; if it does not answer, what was downloaded before is used.
"""

from __future__ import annotations

from typing import Literal

from huggingface_hub import HfApi, constants, errors, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tunefleet.errors import DataError, ModelError, UnreachableError

Kind = Literal["model", "dataset"]
_ASK_S = 10.0


def resolve(name: str, kind: Kind, revision: str | None = None) -> str:
    """Return what to give to `from_pretrained` or `load_dataset` for a name of the hub.

    Args:
        name: `owner/name`.
        kind: What it is.
        revision: Branch, tag or commit.

    Returns:
        The name itself if the hub has it, or the folder of the local cache if the hub cannot be asked.

    Raises:
        ModelError: If no such model exists or may be read.
        DataError: If no such dataset exists or may be read.
        UnreachableError: If the hub does not answer and nothing is in the cache.
    """
    wrong = ModelError if kind == "model" else DataError
    if constants.HF_HUB_OFFLINE:
        cached = _cached(name, kind, revision)
        if cached is None:
            raise wrong(
                f"There is no {kind} {name!r}: no such folder, not in the local cache, and the hub is switched off.",
                hint="Mend the path or name, or unset HF_HUB_OFFLINE on the worker so that it may be downloaded.",
            )
        return cached
    try:
        ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
        ask(name, revision=revision, timeout=_ASK_S)
    except HFValidationError:
        raise wrong(
            f"There is no {kind} {name!r}: it is neither an existing path nor a name of the hub.",
            hint="Mend the path, or write the name as owner/name.",
        ) from None
    except GatedRepoError:
        raise wrong(
            f"The {kind} {name!r} is gated.", hint="Accept its terms on the hub and set HF_TOKEN on the worker."
        ) from None
    except RevisionNotFoundError:
        raise wrong(f"The {kind} {name!r} has no revision {revision!r}.", hint="Mend `revision`.") from None
    except RepositoryNotFoundError:
        raise wrong(
            f"There is no {kind} {name!r} on the hub, or it is private.",
            hint="Mend the name, or set HF_TOKEN on the worker.",
        ) from None
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # the client's own, not re-exported
        cached = _cached(name, kind, revision)
        if cached is None:
            raise UnreachableError(
                f"The hub cannot be reached for the {kind} {name!r} ({error}), and it is not in the local cache.",
                hint="Check the worker's network, name a local folder, or set HF_HUB_OFFLINE=1 to use the cache only.",
            ) from error
        return cached
    return name


def _cached(name: str, kind: Kind, revision: str | None) -> str | None:
    try:
        return str(snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
