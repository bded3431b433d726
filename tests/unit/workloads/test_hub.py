from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi, constants, errors

from tests.libraries import required
from tunefleet.errors import DataError, ModelError, UnreachableError
from tunefleet.workloads.common import hub_files

required("huggingface_hub")
pytestmark = pytest.mark.torch


class Response:
    """What the Hub's errors want to see of an answer."""

    headers: dict[str, str] = {}
    request = None
    status_code = 404


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the Hub answer with an exception, or well with `None`."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def answer(error: Exception | None) -> None:
        def ask(self: HfApi, name: str, **options: Any) -> SimpleNamespace:
            assert options["timeout"] <= 10
            if error is not None:
                raise error
            return SimpleNamespace(sha="c" * 40)

        monkeypatch.setattr(HfApi, "model_info", ask)
        monkeypatch.setattr(HfApi, "dataset_info", ask)

    return answer


@pytest.mark.parametrize("revision", [None, "main"])
@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_name_that_the_hub_has_is_given_on_with_the_commit_of_now(
    online: Any, kind: hub_files.Kind, revision: str | None
) -> None:
    """Its owner cannot change what is loaded after it was looked at."""
    online(None)
    assert hub_files.resolve("owner/name", kind, revision) == ("owner/name", "c" * 40)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.HFValidationError("x"), "neither an existing path nor a name of the Hub"),
        (errors.GatedRepoError("x", response=Response()), "is gated.*HF_TOKEN"),  # type: ignore[arg-type]
        (errors.RevisionNotFoundError("x", response=Response()), "no revision 'main'"),  # type: ignore[arg-type]
        (errors.RepositoryNotFoundError("x", response=Response()), "private.*HF_TOKEN"),  # type: ignore[arg-type]
    ],
)
def test_what_the_hub_refuses_is_a_mistake_of_the_user(online: Any, error: Exception, message: str) -> None:
    online(error)
    with pytest.raises(ModelError, match=message):
        hub_files.resolve("owner/name", "model", "main")
    with pytest.raises(DataError, match=message):
        hub_files.resolve("owner/name", "dataset", "main")


@pytest.mark.parametrize("error", [OSError("no route"), errors.HTTPError("refused")])  # type: ignore[attr-defined]
def test_a_hub_that_does_not_answer_is_a_fault_of_the_network(online: Any, error: Exception) -> None:
    online(error)
    with pytest.raises(UnreachableError, match=r"Hub cannot be reached.*HF_HUB_OFFLINE=1"):
        hub_files.resolve("owner/name", "model")


def test_without_the_hub_the_cache_is_used(online: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub_files, "snapshot_download", lambda name, **options: str(tmp_path))
    online(OSError("no route"))
    assert hub_files.resolve("owner/name", "model").path == str(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_files.resolve("owner/name", "model").path == str(tmp_path)


def test_switched_off_and_not_in_the_cache_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="Correct the path or name, or unset HF_HUB_OFFLINE"):
        hub_files.resolve("owner/name", "model")


CLIMBING = ["/etc/passwd", "../x", "a/../../x", "refs/../../x", "a//b", "~/x", ".x", "-x", "a\nb", "a/", ""]


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("revision", CLIMBING)
def test_a_revision_is_never_a_path(
    online: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str, offline: bool
) -> None:
    """The Hub's library joins it to the folder of its cache, also where that leads out of it."""
    online(OSError("no route"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    (tmp_path / "ref").write_text(str(tmp_path))
    for text in (revision, str(tmp_path / "ref")):
        with pytest.raises(DataError, match="has no revision"):
            hub_files.resolve("owner/name", "dataset", text)


@pytest.mark.parametrize("name", ["a/../../etc/passwd", "../x", "/etc/passwd", "~/x", "./x", "a/b/c", "a\\b"])
def test_a_name_that_climbs_tells_nothing_of_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda self: pytest.fail(f"{self} was looked for"))
    with pytest.raises(ModelError, match="neither a path that was given to the task nor a name of the Hub") as caught:
        hub_files.resolve(name, "model")
    assert str(tmp_path) not in str(caught.value)
