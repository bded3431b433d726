"""The fixture that the tests of clusters start from."""

from __future__ import annotations

import pytest

from tests.unit.services.clusters.fake import Field
from tests.unit.services.lab import Lab


@pytest.fixture
def field(lab: Lab) -> Field:
    return Field(lab)
