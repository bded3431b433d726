"""The bill of materials that a release brings lists all that is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import dependencies
from scripts.dependencies import installed


@pytest.mark.proof
def test_the_bill_of_materials_lists_what_is_installed(tmp_path: Path) -> None:
    dependencies.sbom(tmp_path / "sbom.json")
    listed = {
        f"{each['name'].lower().replace('_', '-').replace('.', '-')}=={each['version'].partition('+')[0]}"
        for each in json.loads((tmp_path / "sbom.json").read_text())["components"]
    }
    assert set(installed()) <= listed
