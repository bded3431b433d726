"""Collecting the tests imports no large library: every test worker collects all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.libraries import required

# Each takes from half a second to ten to import, alone or with what it imports.
LARGE = [
    "accelerate",
    "bitsandbytes",
    "datasets",
    "matplotlib",
    "mlflow",
    "nbclient",
    "pandas",
    "peft",
    "qdrant_client",
    "schemathesis",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "sympy",
    "torch",
    "transformers",
    "trl",
    "vllm",
]
COLLECT = """
import json, sys
import pytest

code = pytest.main(["--collect-only", "-q", "-n0", "tests"])
print(json.dumps([int(code), [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
"""


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_no_large_library_is_imported_to_collect_the_tests(repository: Path) -> None:
    command = [sys.executable, "-c", COLLECT, json.dumps(LARGE)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    *lines, last = done.stdout.splitlines()
    code, imported = json.loads(last)
    assert code == 0, "\n".join(lines[-40:])
    assert imported == [], "import them in the fixture `libraries` of the file, or in the test"


def test_a_library_that_is_not_installed_skips_the_test() -> None:
    required("json", "pytest")
    with pytest.raises(pytest.skip.Exception, match="no_such_library is not installed"):
        required("pytest", "no_such_library")
