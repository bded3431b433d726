"""The Hub repository of a merged model. A merge of the same two commits is found there and not repeated."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import yaml
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

from tunefleet.errors import InputError
from tunefleet.workloads.merging.lora import NEEDED

# File of a repository that records what it was merged from.
MARK: Final = "tunefleet-merge.json"
_ADAPTER: Final = "adapter_config.json"
_MODEL: Final = "config.json"
_CODE: Final = "*.py"
_TAKEN: Final = 409
"""The Hub's status code if a repository of that name exists."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Adapter and base, at their current commits."""

    lora: str
    lora_commit: str
    base: str
    base_commit: str
    whole: bool

    @property
    def digest(self) -> str:
        """Equal for the same two commits."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class Repository:
    """The account for merged models."""

    def __init__(self, username: str, token: str, *, private: bool) -> None:
        self._username, self._token, self._private = username, token, private
        self._hub = HfApi(token=token)

    def parts(self, lora: str, base: str, revision: str | None = None) -> Parts:
        """Look up adapter and base.

        Raises:
            InputError: If one does not exist, is not readable, or is neither adapter nor model.
        """
        about, other = self._info(lora, revision), self._info(base)
        files = {each.rfilename for each in about.siblings or ()}
        if _ADAPTER not in files and _MODEL not in files:
            raise InputError(f"{lora} contains neither an adapter ({_ADAPTER}) nor a model ({_MODEL}).")
        return Parts(lora, str(about.sha), base, str(other.sha), whole=_ADAPTER not in files)

    def name(self, parts: Parts, *, anonymise: bool) -> tuple[str, bool]:
        """Return the name of the repository for a merge, and whether it holds that merge already.

        A repository with another merge is never overwritten: adapters of two accounts may have the same name.
        """
        if anonymise:
            return f"{self._username}/{uuid.uuid4()}", False
        plain = f"{self._username}/merged-{parts.lora.rpartition('/')[2]}"
        own = _own(plain, parts)
        for name in (plain, own):
            if not self._hub.repo_exists(name):
                return name, False
            if self._mark(name) == parts.digest:
                return name, True
        return own, False  # created, but never completed

    def copied(self, parts: Parts) -> Path:
        """Return the folder of a complete model in place of an adapter, without its code."""
        wanted = [each for each in NEEDED if each != _CODE]
        return Path(snapshot_download(parts.lora, revision=parts.lora_commit, token=self._token, allow_patterns=wanted))

    def put(self, name: str, folder: Path, parts: Parts) -> str:
        """Upload a model to its repository, and return its name.

        Raises:
            InputError: If the account is not writable.
        """
        try:
            name = self._made(name, parts)
            self._hub.upload_folder(
                repo_id=name,
                folder_path=folder,
                ignore_patterns=["README.md", MARK, *([_CODE] if parts.whole else [])],
                commit_message=f"Merge {parts.lora} into {parts.base}",
            )
            # Last, since it marks the upload as complete.
            self._hub.upload_file(
                repo_id=name, path_in_repo="README.md", path_or_fileobj=_card(parts), commit_message="Say what this is"
            )
            mark = json.dumps({**asdict(parts), "digest": parts.digest}, indent=1).encode()
            self._hub.upload_file(
                repo_id=name, path_in_repo=MARK, path_or_fileobj=mark, commit_message="Say what this was merged from"
            )
        except HfHubHTTPError as error:
            raise InputError(f"{name} is not writable: {error}") from error
        return name

    def _made(self, name: str, parts: Parts) -> str:
        """Create the repository; the Hub lets one of several concurrent jobs succeed."""
        own = _own(name, parts)
        try:
            self._hub.create_repo(name, private=self._private, exist_ok=name.endswith(own[-9:]))
        except HfHubHTTPError as error:
            if error.response.status_code != _TAKEN:
                raise
            name = own
            self._hub.create_repo(name, private=self._private, exist_ok=True)
        return name

    def _info(self, name: str, revision: str | None = None) -> Any:
        try:
            return self._hub.model_info(name, revision=revision)
        except RepositoryNotFoundError as error:
            raise InputError(
                f"Model {name} not found on the Hub, or not readable with this token.",
                hint="Check the name, and HF_TOKEN.",
            ) from error

    def _mark(self, name: str) -> str | None:
        try:
            path = self._hub.hf_hub_download(name, MARK)
        except EntryNotFoundError:
            return None
        found = json.loads(Path(path).read_bytes()).get("digest")
        return found if isinstance(found, str) else None


def _own(name: str, parts: Parts) -> str:
    """Return the name that is unique to a merge of these two."""
    return f"{name}-{parts.digest[:8]}"


def _card(parts: Parts) -> bytes:
    head = {"library_name": "transformers", "base_model": [parts.base, parts.lora], "tags": ["tunefleet", "merge"]}
    what = "A copy of" if parts.whole else f"`{parts.base}` (commit `{parts.base_commit}`) merged with"
    text = f"{what} `{parts.lora}` (commit `{parts.lora_commit}`), in bf16."
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n{text}\n".encode()
