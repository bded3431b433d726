"""The double of the Hub, as the one that this process and its children ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.fakes.hub import Hub, Repo, serving


@dataclass(frozen=True)
class Served:
    """A double that is asked."""

    hub: Hub

    def put(self, name: str, folder: Path) -> None:
        """Let it have a repository with the files of a folder."""
        repo = self.hub.repos.setdefault(name, Repo())
        repo.branches["main"] |= {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Served]:
    """Serve one, and let this process ask it; its cache is empty."""
    with serving("writer") as made:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        url = made.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield Served(made)
