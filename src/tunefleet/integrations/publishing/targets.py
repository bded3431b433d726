"""Publishing targets: a Hub repository, a folder in a bucket, a local folder."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tunefleet.errors import (
    ConflictError,
    ForbiddenError,
    InputError,
    NotFoundError,
    TunefleetError,
    UnreachableError,
)
from tunefleet.integrations.publishing.hub import packages
from tunefleet.settings import PublishSettings, is_dotenvs
from tunefleet.spec.options.publish_target import bucket_place, hub_repository, target_fault

_TOKENS_PAGE: Final = "https://huggingface.co/settings/tokens"
_OF_THE_HUB: Final = frozenset({".gitattributes"})
"""Files that the Hub adds to a new repository."""
_NEVER_ON_HUB: Final = frozenset({".git", ".cache"})
"""Folders of Git and of the Hub's client."""
_RETRIED: Final = frozenset({408, 409, 412, 425, 429})
"""Statuses of a rejection that may succeed later: timeouts, limits, and another commit at the same time."""

# Called with the number of bytes just sent.
Sent = Callable[[int], None]
_WEIGHTS: Final = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Publishing options.

    Args:
        require_private: Refuse a public repository; `private` alone only applies to one that is created.
    """

    revision: str | None = None
    private: bool = False
    message: str | None = None
    force: bool = False
    require_private: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """Where something was published.

    Args:
        location: For display: the commit on the Hub, or the folder.
        url: Page of the repository, or the URL of the folder in the bucket; `None` for a local folder.
        commit: Commit on the Hub.
    """

    location: str
    url: str | None = None
    commit: str | None = None


class Target(ABC):
    """A publishing target."""

    @abstractmethod
    def check(self) -> None:
        """Check that the target is writable, before anything is downloaded.

        Raises:
            ConflictError: If the target is not empty and must not be overwritten.
            ForbiddenError: If there are no credentials, or they have no write access.
            UnreachableError: If the target does not respond.
        """

    @abstractmethod
    def put(self, folder: Path, on_bytes: Sent) -> Published:
        """Publish a folder. Raises as `check`."""


def target(text: str, wishes: PublishOptions, settings: PublishSettings) -> Target:
    """Return the target of a location.

    Args:
        text: `hf://ORG/NAME`, `s3://BUCKET/PREFIX` or a folder.

    Raises:
        ForbiddenError: If there is no token for the Hub.
        InputError: If the location is not valid, or an option does not apply to it.
        MachineError: If a package is missing.
    """
    fault = target_fault(text)
    if fault is not None:
        raise InputError(f"{text} {fault.message}.", hint=fault.hint)
    repository, bucket = hub_repository(text), bucket_place(text)
    if repository is not None:
        return HubTarget(repository, wishes, settings)
    if wishes.revision or wishes.private or wishes.message:
        raise InputError("--revision, --private and --message only apply to the Hub.", hint="Remove these options.")
    if bucket is not None:
        return BucketTarget(bucket.name, bucket.prefix, wishes, settings)
    return FolderTarget(Path(text).expanduser(), wishes)


class FolderTarget(Target):
    """A folder on this machine."""

    def __init__(self, folder: Path, wishes: PublishOptions) -> None:
        self._folder = folder
        self._wishes = wishes

    def check(self) -> None:
        """Check that the folder is empty."""
        refuse_to_overwrite(self._folder, force=self._wishes.force)

    def put(self, folder: Path, on_bytes: Sent) -> Published:
        """Copy to a temporary folder next to the target first, so that no incomplete file ever appears."""
        place = self._folder.resolve()
        staging = place.with_name(f".{place.name}.part")
        shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
        names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
        try:
            for name in names:
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, staging / name)
                on_bytes((folder / name).stat().st_size)
            for name in names:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (staging / name).replace(place / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        for old in stale((each.name for each in place.iterdir()), {name.as_posix() for name in names}):
            (place / old).unlink()
        return Published(str(place))


class BucketTarget(Target):
    """A folder in a bucket."""

    def __init__(self, name: str, prefix: str, wishes: PublishOptions, settings: PublishSettings) -> None:
        from tunefleet.artifacts.publish import BucketFolder
        from tunefleet.artifacts.s3 import Bucket

        secret = {
            name: None if value is None else value.get_secret_value()
            for name, value in (
                ("access_key", settings.s3_access_key),
                ("secret_key", settings.s3_secret_key),
                ("session_token", settings.s3_session_token),
            )
        }
        bucket = Bucket(name, prefix, endpoint=settings.s3_endpoint, region=settings.s3_region, **secret)
        self._shown = repr(bucket)
        self._place = BucketFolder(bucket)
        self._wishes = wishes

    def check(self) -> None:
        """Check that the folder is empty."""
        existing = self._place.names()
        if existing and not self._wishes.force:
            raise ConflictError(
                f"{self._shown} is not empty: it contains {existing[0]}.",
                hint="Use another prefix, or overwrite it with --force.",
            )

    def put(self, folder: Path, on_bytes: Sent) -> Published:
        """Upload the folder."""
        files = [(path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file()]
        self._place.put(files, on_bytes, replace=self._wishes.force)
        self._place.remove(stale(self._place.names(), {name for name, _ in files}))
        return Published(self._shown, self._shown)


class HubTarget(Target):
    """A repository of the Hugging Face Hub."""

    def __init__(self, repo: str, wishes: PublishOptions, settings: PublishSettings) -> None:
        api, _ = packages()
        from huggingface_hub import get_token

        saved = None if settings.hf_token is not None or is_dotenvs("HF_ENDPOINT") else get_token()
        token = (saved if settings.hf_token is None else settings.hf_token.get_secret_value().strip()) or ""
        if not token.isascii() or not token.isprintable():
            # An HTTP error would quote it.
            raise ForbiddenError("The token for the Hub contains characters that no token has.", hint="Set HF_TOKEN.")
        if not token:
            raise ForbiddenError(
                f"No token with write access to hf://{repo}.",
                hint=f"Create a token with write access at {_TOKENS_PAGE}, and set HF_TOKEN.",
            )
        self._repo = repo
        self._wishes = wishes
        self._hub: Any = api(endpoint=settings.hf_endpoint, token=token)

    def check(self) -> None:
        """Check that the token is valid, the repository empty, and not public if that is required."""
        with self._explained():
            self._hub.whoami()
        self._check_visibility()
        existing = [name for name in self._names() if name not in _OF_THE_HUB]
        if existing and not self._wishes.force:
            raise ConflictError(
                f"hf://{self._repo} already contains {existing[0]} and {len(existing) - 1} more files.",
                hint="Use another repository or --revision, or overwrite it with --force. Its previous content "
                "stays in "
                "its history.",
            )

    def put(self, folder: Path, on_bytes: Sent) -> Published:
        """Create the repository and the branch if needed, upload file by file, and commit all of them together."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        wishes = self._wishes
        found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        files = {name.as_posix(): path for name, path in found.items() if not _NEVER_ON_HUB & set(name.parts)}
        added = [CommitOperationAdd(name, str(path)) for name, path in sorted(files.items())]
        with self._explained():
            self._hub.create_repo(self._repo, private=wishes.private or None, exist_ok=True)
            if wishes.revision:
                self._hub.create_branch(self._repo, branch=wishes.revision, exist_ok=True)
            old = [CommitOperationDelete(name) for name in stale(self._names(), files)]
            for each in added:
                # One by one, for the progress; files that an interrupted upload has sent are not sent again.
                self._hub.preupload_lfs_files(self._repo, additions=[each], revision=wishes.revision, free_memory=False)
                on_bytes(files[each.path_in_repo].stat().st_size)
            made = self._hub.create_commit(
                self._repo,
                [*added, *old],
                commit_message=wishes.message or "Upload by Tunefleet",
                revision=wishes.revision,
            )
        page = f"{self._hub.endpoint}/{self._repo}" + (f"/tree/{quote(wishes.revision)}" if wishes.revision else "")
        return Published(str(made.commit_url or f"hf://{self._repo}"), page, made.oid)

    def _check_visibility(self) -> None:
        from huggingface_hub.errors import RepositoryNotFoundError

        if not self._wishes.require_private:
            return
        try:
            with self._explained():
                public = not self._hub.model_info(self._repo).private
        except NotFoundError as error:
            if isinstance(error.__cause__, RepositoryNotFoundError):
                return  # it will be created
            raise
        if public:
            raise ConflictError(
                f"hf://{self._repo} exists and is public.",
                hint="Make it private on the Hub, use another repository, or publish without `private`.",
            )

    def _names(self) -> list[str]:
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            with self._explained():
                return sorted(self._hub.list_repo_files(self._repo, revision=self._wishes.revision))
        except NotFoundError as error:
            if isinstance(error.__cause__, RepositoryNotFoundError | RevisionNotFoundError):
                return []  # it will be created
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from huggingface_hub import errors

        try:
            yield
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
            raise NotFoundError(
                f"hf://{self._repo} does not exist, or the token has no access.", hint="Check the name and HF_TOKEN."
            ) from error
        except errors.HFValidationError as error:
            raise InputError(f"hf://{self._repo} is not a valid Hub id: {error}") from error
        except RuntimeError as error:  # wraps any error of the upload
            raise self._refused(error.__cause__ if isinstance(error.__cause__, Exception) else error) from error
        except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # the client's own, not re-exported
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> TunefleetError:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in {401, 403}:
            return ForbiddenError(
                f"The Hub rejects access to hf://{self._repo}: the token is invalid, or has no write access.",
                hint=f"Create a token with write access at {_TOKENS_PAGE}, and set HF_TOKEN.",
            )
        if status is not None and 400 <= status < 500 and status not in _RETRIED:
            return InputError(f"The Hub rejects the upload to hf://{self._repo}: {error}")
        return UnreachableError(f"Cannot reach the Hub for hf://{self._repo}: {error}")


def refuse_to_overwrite(folder: Path, *, force: bool) -> None:
    """Check that a folder is empty.

    Raises:
        ConflictError: If it contains files that must not be overwritten.
    """
    if folder.is_file():
        raise ConflictError(f"{folder} is a file.", hint="Use a folder.")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise ConflictError(f"{folder} is not empty.", hint="Use another folder, or write into it with --force.")


def stale(existing: Iterable[str], new: Collection[str]) -> list[str]:
    """Return the weights of an earlier model in a target; all other files stay."""
    if not _weights(new):
        return []
    return [name for name in _weights(existing) if name not in new]


def _weights(names: Iterable[str]) -> list[str]:
    # Only at the root: weights in folders belong to another model, such as a checkpoint.
    return sorted(name for name in names if "/" not in name and any(fnmatchcase(name, each) for each in _WEIGHTS))
