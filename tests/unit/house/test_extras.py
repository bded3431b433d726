"""An extra is added from where the package came, whatever a public index has under its name."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from tunefleet import errors


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({"url": "https://host/install/tunefleet-1-py3-none-any.whl", "archive_info": {}},
         "'tunefleet[s3] @ https://host/install/tunefleet-1-py3-none-any.whl'"),
        ({"url": "file:///tmp/my%20tree", "dir_info": {"editable": True}}, "-e '/tmp/my tree[s3]'"),
        ({"url": "file:///tmp/tree", "dir_info": {}}, "'/tmp/tree[s3]'"),
        ({"url": "https://host/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
         "'tunefleet[s3] @ git+https://host/t.git@abc'"),
        (None, "'./tunefleet-VERSION-py3-none-any.whl[s3]'"),
    ],
)  # fmt: skip
def test_the_command_names_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, requirement: str
) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(errors, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    assert errors.install_command("s3") == f"{sys.executable} -m pip install {requirement}"


def test_without_a_distribution_a_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(errors, "distribution", none)
    assert errors.install_command("s3").endswith("'./tunefleet-VERSION-py3-none-any.whl[s3]'")
