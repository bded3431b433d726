"""What a worker needs to publish, and says if it lacks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.executors import merge
from tunefleet.executors.merge import PushExecutor
from tunefleet.integrations.publishing.hub import has_token


@pytest.mark.parametrize(
    ("environment", "hub", "client"),
    [
        ({"HF_TOKEN": "x"}, None, None),
        ({"HUGGING_FACE_HUB_TOKEN": "x"}, None, None),
        ({}, "HF_TOKEN is not set", None),
        ({"HF_TOKEN": "x", "HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE", "HF_HUB_OFFLINE"),
    ],
)
def test_a_token_and_a_way_to_the_hub(
    environment: dict[str, str], hub: str | None, client: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "missing", lambda *names, **_: None)
    found = PushExecutor().features({"HF_HOME": str(tmp_path), **environment})
    for name, says in {"hub": hub, "huggingface_hub": client}.items():
        assert found[name] is None if says is None else says in str(found[name])


def test_a_saved_login_is_a_token(tmp_path: Path) -> None:
    assert not has_token({"HF_HOME": str(tmp_path)})
    (tmp_path / "huggingface").mkdir()
    for file, environment in (
        (tmp_path / "token", {"HF_HOME": str(tmp_path)}),
        (tmp_path / "huggingface/token", {"XDG_CACHE_HOME": str(tmp_path)}),
        (tmp_path / "mine", {"HF_TOKEN_PATH": str(tmp_path / "mine")}),
    ):
        file.write_text(" \n")
        assert not has_token(environment)
        file.write_text("hf_x\n")
        assert has_token(environment)


def test_the_packages_of_one_target_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"huggingface_hub", "boto3"}
    monkeypatch.setattr(merge, "missing", lambda *names, **_: "It is missing." if absent & set(names) else None)
    assert PushExecutor().unavailable_reason() == "It is missing."
    absent.remove("boto3")
    assert PushExecutor().unavailable_reason() is None
    assert PushExecutor().features({"HF_TOKEN": "x"})["hub"] == "It is missing."
