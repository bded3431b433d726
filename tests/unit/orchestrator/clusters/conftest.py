"""The fixture that the tests of clusters start from."""

from __future__ import annotations

import pytest

from tests.unit.orchestrator.clusters.fake import Field
from tests.unit.orchestrator.lab import Lab


@pytest.fixture
def field(lab: Lab) -> Field:
    return Field(lab)
