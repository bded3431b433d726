"""What is read from the Hugging Face hub: whether a model is public, what it consists of, and the model itself."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import MachineError, NotFoundError, UnreachableError, is_disk_full
from tunefleet.settings import PublishSettings, is_dotenvs

_ADAPTER: Final = "adapter_config.json"
_MODEL: Final = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""Weights that run no code when they are read, and what explains them: nothing else is passed on."""


@dataclass(frozen=True, slots=True)
class Found:
    """A repository as the hub has it now."""

    commit: str | None
    files: frozenset[str]

    @property
    def is_adapter(self) -> bool:
        """Whether it holds an adapter: beside one there may be the configuration of its base."""
        return _ADAPTER in self.files

    @property
    def is_safe(self) -> bool:
        """Whether it holds weights that `fetch` takes."""
        return any("/" not in name and name.endswith(".safetensors") for name in self.files)


def packages() -> tuple[Any, Any]:
    """Return the hub's client and its errors.

    Raises:
        MachineError: If the package is missing.
    """
    try:
        from huggingface_hub import HfApi, errors
    except ImportError as error:
        raise MachineError(
            "Publishing on the hub needs the package huggingface_hub.", hint="pip install huggingface_hub"
        ) from error
    return HfApi, errors


def is_public(repo: str, endpoint: str | None) -> bool:
    """Return whether anybody may read a model of the hub; it blocks.

    Raises:
        MachineError: If a package is missing.
        UnreachableError: If the hub does not answer.
    """
    api, errors = packages()
    try:
        about = api(endpoint=endpoint, token=False).model_info(repo)
    except errors.RepositoryNotFoundError:
        return False  # so it says of a private one, too
    except (errors.HTTPError, OSError) as error:
        raise UnreachableError(f"The hub cannot be reached for hf://{repo}: {error}") from error
    return not (about.private or about.gated)


def look(repo: str, settings: PublishSettings) -> Found | None:
    """Return what a repository holds; null if there is none, or the token may not see it; it blocks.

    Raises:
        MachineError: If a package is missing.
        UnreachableError: If the hub does not answer.
    """
    api, errors = packages()
    try:
        about = api(endpoint=settings.hf_endpoint, token=_token(settings)).model_info(repo)
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return None
    except (errors.HTTPError, OSError) as error:
        raise UnreachableError(f"The hub cannot be reached for hf://{repo}: {error}") from error
    return Found(about.sha, frozenset(each.rfilename for each in about.siblings or ()))


def read(repo: str, file: str, settings: PublishSettings) -> bytes | None:
    """Return a small file of a model; null if there is none, or the token may not see it; it blocks.

    Raises:
        MachineError: If a package is missing.
        UnreachableError: If the hub does not answer.
    """
    api, errors = packages()
    try:
        hub = api(endpoint=settings.hf_endpoint, token=_token(settings))
        with tempfile.TemporaryDirectory(prefix="tunefleet-hub-") as folder:
            return Path(hub.hf_hub_download(repo, file, local_dir=folder)).read_bytes()
    except errors.LocalEntryNotFoundError as error:  # so it says that the hub does not answer
        raise UnreachableError(f"The hub cannot be reached for hf://{repo}: {error}") from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError):
        return None
    except (errors.HTTPError, OSError) as error:
        raise UnreachableError(f"The hub cannot be reached for hf://{repo}: {error}") from error


def fetch(repo: str, commit: str | None, folder: Path, settings: PublishSettings) -> None:
    """Fetch a whole model into a folder: its weights as safetensors, and what explains them, but no code; it blocks.

    Raises:
        MachineError: If a package is missing.
        NotFoundError: If it is not there (any more), or has no such weights.
        UnreachableError: If the hub does not answer.
        OSError: If the disk is full.
    """
    api, errors = packages()
    try:
        hub = api(endpoint=settings.hf_endpoint, token=_token(settings))
        # Only what lies at the root: checkpoints and other forms of the model lie in folders.
        there = [name for name in hub.list_repo_files(repo, revision=commit) if "/" not in name]
        names = [name for name in there if any(fnmatch(name, each) for each in _MODEL)]
        if not any(name.endswith(".safetensors") for name in names):
            raise NotFoundError(f"hf://{repo} has no weights as safetensors.", hint="No others are passed on.")
        hub.snapshot_download(repo, revision=commit, local_dir=folder, allow_patterns=names)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise NotFoundError(
            f"There is no hf://{repo} (any more), or the token may not see it.",
            hint="Check the name, and HF_TOKEN.",
        ) from error
    except (errors.HTTPError, OSError) as error:
        if is_disk_full(error):
            raise  # it was not the hub
        raise UnreachableError(f"The hub cannot be reached for hf://{repo}: {error}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # what the download remembers of itself


def _token(settings: PublishSettings) -> str | bool | None:
    if settings.hf_token is not None:
        return settings.hf_token.get_secret_value()
    # Null is the token that somebody has saved by logging in, which no file of a folder chooses an address for.
    return False if is_dotenvs("HF_ENDPOINT") else None
