"""Reads from the Hugging Face Hub: visibility of a model, its files, and the model itself."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import MachineError, NotFoundError, UnreachableError, is_disk_full
from tunefleet.settings import PublishSettings, is_dotenvs

_ADAPTER: Final = "adapter_config.json"
_MODEL: Final = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""Weights that run no code when they are loaded, and their configuration; no other files are downloaded."""


@dataclass(frozen=True, slots=True)
class HubRepository:
    """The current state of a repository."""

    commit: str | None
    files: frozenset[str]

    @property
    def is_adapter(self) -> bool:
        """Whether it contains an adapter, possibly with the configuration of its base model."""
        return _ADAPTER in self.files

    @property
    def is_safe(self) -> bool:
        """Whether it contains weights that `fetch` downloads."""
        return any("/" not in name and name.endswith(".safetensors") for name in self.files)


def packages() -> tuple[Any, Any]:
    """Return the Hub client and its errors.

    Raises:
        MachineError: If the package is missing.
    """
    try:
        from huggingface_hub import HfApi, errors
    except ImportError as error:
        raise MachineError(
            "Publishing to the Hub requires the package huggingface_hub.", hint="pip install huggingface_hub"
        ) from error
    return HfApi, errors


def has_token(environment: Mapping[str, str]) -> bool:
    """Return whether a process with these variables has a token for the Hub: set, or saved by a login."""
    if environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    # Read from the file: the import of the Hub's client takes half a second.
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or str(Path(cache) / "huggingface")
    saved = Path(environment.get("HF_TOKEN_PATH") or str(Path(home) / "token")).expanduser()
    try:
        return bool(saved.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        return False


def is_public(repo: str, endpoint: str | None) -> bool:
    """Return whether a Hub model is public; blocks.

    Raises:
        MachineError: If a package is missing.
        UnreachableError: If the Hub does not respond.
    """
    api, errors = packages()
    try:
        about = api(endpoint=endpoint, token=False).model_info(repo)
    except errors.RepositoryNotFoundError:
        return False  # the Hub's response for private models, too
    except (errors.HTTPError, OSError) as error:
        raise UnreachableError(f"Cannot reach the Hub for hf://{repo}: {error}") from error
    return not (about.private or about.gated)


def look(repo: str, settings: PublishSettings) -> HubRepository | None:
    """Return the state of a repository; `None` if it does not exist or the token has no access; blocks.

    Raises:
        MachineError: If a package is missing.
        UnreachableError: If the Hub does not respond.
    """
    api, errors = packages()
    try:
        about = api(endpoint=settings.hf_endpoint, token=_token(settings)).model_info(repo)
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return None
    except (errors.HTTPError, OSError) as error:
        raise UnreachableError(f"Cannot reach the Hub for hf://{repo}: {error}") from error
    return HubRepository(about.sha, frozenset(each.rfilename for each in about.siblings or ()))


def read(repo: str, file: str, settings: PublishSettings) -> bytes | None:
    """Return a small file of a model; `None` if it does not exist or the token has no access; blocks.

    Raises:
        MachineError: If a package is missing.
        UnreachableError: If the Hub does not respond.
    """
    api, errors = packages()
    try:
        hub = api(endpoint=settings.hf_endpoint, token=_token(settings))
        with tempfile.TemporaryDirectory(prefix="tunefleet-hub-") as folder:
            return Path(hub.hf_hub_download(repo, file, local_dir=folder)).read_bytes()
    except errors.LocalEntryNotFoundError as error:  # raised if the Hub does not respond
        raise UnreachableError(f"Cannot reach the Hub for hf://{repo}: {error}") from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError):
        return None
    except (errors.HTTPError, OSError) as error:
        raise UnreachableError(f"Cannot reach the Hub for hf://{repo}: {error}") from error


def fetch(repo: str, commit: str | None, folder: Path, settings: PublishSettings) -> None:
    """Download a model into a folder: safetensors weights and configuration, no code; blocks.

    Raises:
        MachineError: If a package is missing.
        NotFoundError: If it does not exist (any more), or has no safetensors weights.
        UnreachableError: If the Hub does not respond.
        OSError: If the disk is full.
    """
    api, errors = packages()
    try:
        hub = api(endpoint=settings.hf_endpoint, token=_token(settings))
        # Only files at the root: checkpoints and other formats of the model are in folders.
        root_files = [name for name in hub.list_repo_files(repo, revision=commit) if "/" not in name]
        names = [name for name in root_files if any(fnmatch(name, each) for each in _MODEL)]
        if not any(name.endswith(".safetensors") for name in names):
            raise NotFoundError(f"hf://{repo} has no safetensors weights.", hint="Other formats are not supported.")
        hub.snapshot_download(repo, revision=commit, local_dir=folder, allow_patterns=names)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise NotFoundError(
            f"hf://{repo} does not exist (any more), or the token has no access.",
            hint="Check the name, and HF_TOKEN.",
        ) from error
    except (errors.HTTPError, OSError) as error:
        if is_disk_full(error):
            raise  # not an error of the Hub
        raise UnreachableError(f"Cannot reach the Hub for hf://{repo}: {error}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # metadata of the download


def _token(settings: PublishSettings) -> str | bool | None:
    if settings.hf_token is not None:
        return settings.hf_token.get_secret_value()
    # `None` uses the token of a saved login, which must not go to an endpoint that a .env file chose.
    return False if is_dotenvs("HF_ENDPOINT") else None
