"""The notebook of the SDK runs from its first cell to its last, against a real server and worker."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.documents.samples import client_faults
from tunefleet.cli.local_cluster.supervisor import LocalFleet


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global NotebookClient, nbformat
    import nbformat
    from nbclient import NotebookClient


pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
CELL_S = 400
NOTEBOOK = "examples/notebook/first-fine-tune.ipynb"


@pytest.fixture
def notebook(repository: Path) -> Any:
    """The notebook as it is in the tree."""
    return nbformat.read(repository / NOTEBOOK, as_version=4)


def test_the_notebook_is_kept_without_what_it_has_printed(notebook: Any) -> None:
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None or cell.metadata] == []
    assert set(notebook.metadata) == {"kernelspec", "language_info"}


def said(cells: list[Any], name: str) -> str:
    """Return what a cell has printed, or what its last line was."""
    (cell,) = [cell for cell in cells if cell.get("id") == name]
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def kernel_of(fleet: LocalFleet, folder: Path) -> dict[str, str]:
    """Return the variables of a kernel that has a fleet for its server."""
    return os.environ | {
        "TUNEFLEET_URL": fleet.url, "TUNEFLEET_KEY": fleet.key, "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "IPYTHONDIR": str(folder / "ipython"),
    }  # fmt: skip


def executed(notebook: Any, fleet: LocalFleet, folder: Path) -> list[Any]:
    """Run a notebook in a folder; return its cells with what they said."""
    resources = {"metadata": {"path": folder}}
    client = NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=resources)
    client.execute(env=kernel_of(fleet, folder))
    cells: list[Any] = notebook.cells
    return cells


def test_its_first_cells_run_and_the_others_call_what_there_is(
    notebook: Any, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert [fault for source in code for fault in client_faults(ast.parse(source))] == []
    ids = [cell.id for cell in notebook.cells]
    notebook.cells = notebook.cells[: ids.index("submit") + 1]
    with LocalFleet(tmp_path / "data", port=free_port(), workers=0, save_client=False) as alone:
        cells = executed(notebook, alone, tmp_path)
        assert said(cells, "connect").split()[::2] == [alone.url, "admin"]
        assert said(cells, "submit").startswith("'task-")


@pytest.mark.torch
def test_the_notebook_runs(notebook: Any, fleet: LocalFleet, tmp_path: Path) -> None:
    cells = executed(notebook, fleet, tmp_path)
    assert said(cells, "connect").split()[::2] == [fleet.url, "admin"]
    assert said(cells, "submit").startswith("'task-")
    assert [line.split()[0] for line in said(cells, "follow").splitlines()] == ["1", "2", "3", "4", "5"]
    assert said(cells, "pause").strip() == "paused"
    assert said(cells, "resume").strip() == "completed"
    (plot,) = [cell for cell in cells if cell.get("id") == "plot"]
    assert any("image/png" in output.get("data", {}) for output in plot.outputs)
    assert "adapter_model.safetensors" in said(cells, "fetch")
    assert "Tom has 3 apples" in said(cells, "load")
