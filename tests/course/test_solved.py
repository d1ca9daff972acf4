"""Run All in the solved assignments: every notebook of source/ in a real kernel, from its first cell to its last."""

import shutil

import nbformat
import pytest
from checkout import ROOT
from nbclient import NotebookClient

SOURCE = ROOT / "source"
ASSIGNMENTS = sorted(folder.name for folder in SOURCE.iterdir() if folder.is_dir())


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_solved_assignment_runs_to_its_end_and_passes_every_check(assignment, tmp_path, monkeypatch):
    folder = shutil.copytree(SOURCE / assignment, tmp_path / assignment)  # what it saves stays there
    monkeypatch.setenv("TRANSFORMER_LM_ANSWERS", str(folder / "my_answers"))
    notebook = nbformat.read(folder / f"{assignment}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()

    code = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    checks = {name for name, cell in code.items() if cell.source.startswith("checks.")}
    assert checks
    assert {name for name in checks if "✓" not in printed(code[name])} == set()
    assert "✗" not in printed(code["hand-in-run"])
    assert {name: printed(cell, "stderr") for name, cell in code.items() if printed(cell, "stderr")} == {}


def printed(cell: nbformat.NotebookNode, stream: str = "stdout") -> str:
    """Return what a cell has printed."""
    return "".join(output.text for output in cell.outputs if output.get("name") == stream)
