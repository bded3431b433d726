"""Resolves and downloads models and datasets of the Hugging Face Hub, with download progress and clear errors.

The libraries retry an unreachable hub for most of a minute. Here one short request checks that the name exists and the
hub answers; if it does not answer, the local cache is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from huggingface_hub import HfApi, constants, errors, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tunefleet.errors import DataError, ModelError, UnreachableError
from tunefleet.spec.base import hub_id_error, is_revision

Kind = Literal["model", "dataset"]
_TIMEOUT_S = 10.0
# Licenses are accepted on the official site, even if the files come from a mirror.
_PAGES: Final = "https://huggingface.co"
_MB: Final = 1_000_000
_POLL_S: Final = 1.0
# Polls without progress after which watching ends: the download has failed or needs fewer files than expected.
_MAX_IDLE_POLLS: Final = 10
# Suffixes of weight files in order of preference: loading fetches all files with the first suffix that exists.
_WEIGHTS: Final = (".safetensors", ".bin")
_SMALL: Final = (".json", ".txt", ".model", ".jinja")
_reporters: list[Callable[..., None]] = []
_watched: set[str] = set()


class Resolved(NamedTuple):
    """Arguments of `from_pretrained` or `load_dataset`."""

    path: str
    revision: str | None


def resolve(name: str, kind: Kind, revision: str | None = None) -> Resolved:
    """Return the arguments of `from_pretrained` or `load_dataset` for a Hub name.

    Raises:
        ModelError: If the model does not exist or may not be read.
        DataError: If the dataset does not exist or may not be read.
        UnreachableError: If the Hub does not respond and nothing is in the cache.
    """
    wrong = ModelError if kind == "model" else DataError
    if (error := hub_id_error(name)) is not None:
        # Before the disk is accessed: with a path such as `../x`, the error would reveal which files exist.
        raise wrong(
            f"{kind.capitalize()} {name!r} not found: it is neither a path that was given to the "
            "task nor a name of the Hub, "
            f"since it {error}.",
            hint="Correct the path, or write the name as owner/name.",
        )
    if revision is not None and not is_revision(revision):
        raise wrong(f"{kind.capitalize()} {name!r} has no revision {revision!r}.", hint="Correct `revision`.")
    if Path(name).exists():
        # The libraries would load that folder instead, depending on the working directory of this process.
        raise wrong(
            f"{kind.capitalize()} {name!r} is a Hub name, but the working directory of the "
            "job also has a file or folder "
            "with this name.",
            hint=f"Write ./{name} if you mean the folder.",
        )
    if constants.HF_HUB_OFFLINE:
        cached = _cached(name, kind, revision)
        if cached is None:
            raise wrong(
                f"{kind.capitalize()} {name!r} not found: no such folder, not in the local "
                "cache, and the Hub is disabled.",
                hint="Correct the path or name, or unset HF_HUB_OFFLINE on the worker to allow the download.",
            )
        return Resolved(cached, revision)
    try:
        with explain_errors(name, kind, revision):
            about = _ask(name, kind, revision)
    except UnreachableError:
        cached = _cached(name, kind, revision)
        if cached is None:
            raise
        return Resolved(cached, revision)
    if kind == "model":
        sizes = {file.rfilename: file.size or 0 for file in getattr(about, "siblings", None) or ()}
        watch_download(name, sizes, Path(constants.HF_HUB_CACHE))
    # Pinned to the commit: a push during the job must not mix files of two revisions.
    return Resolved(name, getattr(about, "sha", None) or revision)


def fetched(name: str, revision: str | None = None, patterns: Sequence[str] | None = None) -> Path:
    """Return the folder of a model or adapter repository, downloaded unless it is in the cache.

    Raises:
        ModelError: If it does not exist or may not be read.
        UnreachableError: If the Hub does not respond and it is not in the cache.
    """
    found = resolve(name, "model", revision)
    return download_files(name, found.revision, patterns) if found.path == name else Path(found.path)


def download_files(
    name: str, revision: str | None = None, patterns: Sequence[str] | None = None, *, kind: Kind = "model"
) -> Path:
    """Return the folder of a repository resolved by `resolve`, with the files that match the patterns."""
    wanted = None if patterns is None else [*patterns]
    with explain_errors(name, kind, revision):
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=wanted))


@contextmanager
def explain_errors(name: str, kind: Kind, revision: str | None = None) -> Iterator[None]:
    """Convert errors of the Hub client to errors with a hint.

    Raises:
        ModelError: If the model does not exist or may not be read.
        DataError: If the dataset does not exist or may not be read.
        UnreachableError: If the Hub does not respond.
    """
    wrong = ModelError if kind == "model" else DataError
    try:
        yield
    except HFValidationError:
        raise wrong(
            f"{kind.capitalize()} {name!r} not found: it is neither an existing path nor a name of the Hub.",
            hint="Correct the path, or write the name as owner/name.",
        ) from None
    except GatedRepoError:
        raise wrong(f"{kind.capitalize()} {name!r} is gated.", hint=_licence_hint(name, kind)) from None
    except RevisionNotFoundError:
        raise wrong(f"{kind.capitalize()} {name!r} has no revision {revision!r}.", hint="Correct `revision`.") from None
    except RepositoryNotFoundError:
        raise wrong(
            f"{kind.capitalize()} {name!r} does not exist on the Hub or is private.",
            hint="Correct the name, or set HF_TOKEN on the worker to a token that may read it.",
        ) from None
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # the client's own, not re-exported
        if _status(error) in {401, 403}:
            raise wrong(
                f"The Hub denied access to the {kind} {name!r}: the token is invalid or may not read it.",
                hint=_licence_hint(name, kind),
            ) from None
        raise UnreachableError(
            f"The Hub cannot be reached for the {kind} {name!r} ({error}), and it is not in the local cache.",
            hint="Check the worker's network, use a local folder, or set HF_HUB_OFFLINE=1 to use the cache only.",
        ) from error


def _ask(name: str, kind: Kind, revision: str | None) -> Any:
    hub = HfApi()
    about: Any
    if kind == "model":
        about = hub.model_info(name, revision=revision, timeout=_TIMEOUT_S, files_metadata=_reports_downloads())
    else:
        about = hub.dataset_info(name, revision=revision, timeout=_TIMEOUT_S)
    if getattr(about, "gated", False):
        # The metadata of a gated repository is public; the refusal would come only when its files are downloaded.
        hub.auth_check(name, repo_type=kind)
    return about


def _licence_hint(name: str, kind: Kind) -> str:
    page = f"{_PAGES}/{name}" if kind == "model" else f"{_PAGES}/datasets/{name}"
    if get_token() is None:
        return f"Accept its license at {page} and set HF_TOKEN on the worker to a token of that account."
    return (
        f"Accept its license at {page} with the account of the worker's HF_TOKEN (and give that token the right to "
        "read gated repositories), or set another HF_TOKEN."
    )


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _cached(name: str, kind: Kind, revision: str | None) -> str | None:
    try:
        return str(snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def report_downloads_to(progress: Callable[..., None]) -> None:
    """Set the function that download progress is reported to, usually `Journal.progress`."""
    _reporters[:] = [progress]


def _reports_downloads() -> bool:
    """Return whether download progress is reported."""
    return bool(_reporters)


def watch_download(name: str, sizes: Mapping[str, int], cache: Path) -> None:
    """Report the download progress of a model from a background thread; does nothing if it is watched already."""
    if not _reporters or name in _watched:
        return
    _watched.add(name)
    # The size of the cache folder is polled: the download happens inside the libraries, without a callback.
    folder = cache / f"models--{name.replace('/', '--')}" / "blobs"
    arguments = folder, loaded_bytes(sizes), _reporters[-1]
    threading.Thread(target=_follow, args=arguments, name="arrivals", daemon=True).start()


def loaded_bytes(sizes: Mapping[str, int]) -> int:
    """Return how many bytes loading a model downloads: weights in one format, and small files."""
    weights = next((end for end in _WEIGHTS if any(name.endswith(end) for name in sizes)), None)
    ends = _SMALL if weights is None else (weights, *_SMALL)
    return sum(size for name, size in sizes.items() if name.endswith(ends))


def _follow(folder: Path, total: int, progress: Callable[..., None]) -> None:
    idle, before = 0, _bytes_in(folder)
    while before < total and idle < _MAX_IDLE_POLLS:
        time.sleep(_POLL_S)
        done = _bytes_in(folder)
        idle = idle + 1 if done == before else 0
        if done != before:
            progress(f"fetching {min(done, total) // _MB:,} of {-(-total // _MB):,} MB")
        before = done


def _bytes_in(folder: Path) -> int:
    """Return the size of a cache folder, including unfinished files."""
    found = 0
    for path in folder.glob("*"):
        with suppress(OSError):  # renamed in the meantime
            found += path.stat().st_size
    return found
