"""Without the client library of a bucket, the error names the extra to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

LACKING = """
import sys
sys.modules["{library}"] = None
from tunefleet.errors import MachineError
try:
    import tunefleet.artifacts.{module}
except MachineError as error:
    print(error.message, error.hint)
"""


@pytest.mark.parametrize(("module", "library"), [("s3", "boto3"), ("gcs", "google"), ("azure", "azure")])
def test_a_missing_library_names_its_extra(module: str, library: str) -> None:
    command = [sys.executable, "-c", LACKING.format(module=module, library=library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"[{module}]" in done.stdout, done.stderr
