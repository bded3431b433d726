"""A wheel that is built where no Node.js is on the PATH brings the page, and a server installed from it serves it."""

from __future__ import annotations

import re
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.making import build, copy_tree, one
from tunefleet.cli.local_cluster.supervisor import LocalFleet

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
REGISTRY = "https://registry.npmjs.org/react"
BUILT = ("web/node_modules", "web/dist", "src/tunefleet/api/ui")


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Path:
    """What pip would put into site-packages."""
    try:
        urllib.request.urlopen(REGISTRY, timeout=20).close()
    except (urllib.error.URLError, TimeoutError):
        missing("the npm registry")
    folder = tmp_path_factory.mktemp("wheel")
    empty = tmp_path_factory.mktemp("empty")
    build(copy_tree(repository, folder / "tree"), folder, "wheel", page=True, PATH=str(empty))
    site = folder / "site"
    with zipfile.ZipFile(one(folder, "*.whl")) as wheel:
        wheel.extractall(site)
    return site


def test_a_server_from_the_wheel_serves_the_page(installed: Path, tmp_path: Path, free_port: Callable[[], int]) -> None:
    environment = {"PYTHONPATH": str(installed), "TUNEFLEET_WARM_START": "false"}
    with LocalFleet(tmp_path, port=free_port(), environment=environment, save_client=False) as fleet:
        with urllib.request.urlopen(f"{fleet.url}/ui/tasks") as answer:
            text = answer.read().decode()
        scripts = re.findall(r'src="(/ui/assets/[^"]+\.js)"', text)
        assert scripts
        for path in scripts:
            with urllib.request.urlopen(fleet.url + path) as answer:
                assert answer.headers["cache-control"].endswith("immutable")
                assert len(answer.read()) > 1000


def test_the_source_distribution_has_what_the_page_is_built_from(repository: Path, tmp_path: Path) -> None:
    tree = copy_tree(repository, tmp_path / "tree")
    # What a build of the page leaves in a checkout.
    for folder in BUILT:
        (tree / folder).mkdir(parents=True)
        (tree / folder / "index.js").touch()
    build(tree, tmp_path, "sdist")
    with tarfile.open(one(tmp_path, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"web/package-lock.json", "web/openapi.json", "web/src/main.tsx", "examples/lora_sft.yaml"} <= names
    assert "hatch_build.py" in names
    assert not [name for name in names if name.startswith(BUILT)]
