"""What the tests of packaging share: a wheel of this tree, and an environment that it was installed into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.making import VERSION, build, copy_tree, environment_with, one


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, of version 0.9.1, without the page."""
    folder = tmp_path_factory.mktemp("wheel")
    build(copy_tree(repository, folder / "tree"), folder, "wheel", **{VERSION: "0.9.1"})
    return one(folder, "*.whl")


@pytest.fixture(scope="session")
def bin_(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that the wheel was installed into, with what it requires and no extra."""
    return environment_with(wheel, tmp_path_factory.mktemp("installed") / "env")
