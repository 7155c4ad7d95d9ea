"""The notebooks run from beginning to end, and what is kept of their outputs is theirs and can be shown to anybody."""

import base64
import io
import re
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from PIL import Image

from run_notebooks import KERNEL, SIZE, code_cells, digest, executed

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LARGEST = 400_000
"""Bytes of a notebook, at most: people read them on the web."""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def pictures(cell: nbformat.NotebookNode) -> list[str]:
    return [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """All that a cell showed but pictures."""
    shown = [output.get("text", "") for output in cell.outputs]
    data = [output.get("data", {}) for output in cell.outputs]
    return shown + [value for part in data for kind, value in part.items() if kind != "image/png"]


def complaints(text: str) -> list[str]:
    """What an output should not say: places on a machine, warnings."""
    places = re.findall(r"(?:^|[\s'\"(=\[])(?:file://)?(/[\w.@~-]+/[^\s'\")]*|[A-Za-z]:\\\S+|~/\S+)", text)
    return places + re.findall(r"\w*Warning\b.*|\bWARNING\b.*|Traceback", text)


@each
def test_notebook_runs(path, tmp_path, monkeypatch):
    """At its small size, in a kernel as Jupyter starts it. What it shows is what the kept outputs show, in small."""
    monkeypatch.setenv(SIZE, "small")
    book = executed(path, tmp_path, timeout=900)
    for cell, kept in zip(code_cells(book), code_cells(read(path)), strict=True):
        assert "error" not in [output.output_type for output in cell.outputs]
        assert "stderr" not in [output.get("name") for output in cell.outputs], f"cell {cell.id}: {texts(cell)}"
        found = [line for text in texts(cell) for line in complaints(text)]
        assert not found, f"cell {cell.id}: {found[0]}"
        kinds = [[output.output_type for output in one.outputs] for one in (cell, kept)]
        assert kinds[0] == kinds[1], f"cell {cell.id} shows {kinds[0]}, kept is {kinds[1]}: make notebooks"


def test_a_cell_that_fails_is_noticed(tmp_path):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")], metadata=KERNEL)
    nbformat.write(book, tmp_path / "fails.ipynb")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(tmp_path / "fails.ipynb", tmp_path, timeout=60)


@each
def test_kept_outputs_are_of_this_code(path):
    book = read(path)
    nbformat.validate(book)
    assert book.metadata == KERNEL | {"naht": {"ran": digest(book)}}, "make notebooks"
    cells = code_cells(book)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "make notebooks"


@each
def test_kept_outputs_can_be_shown(path):
    assert path.stat().st_size < LARGEST
    shown = 0
    for cell in code_cells(read(path)):
        kinds = {(output.output_type, output.get("name")) for output in cell.outputs}
        assert kinds <= {("stream", "stdout"), ("display_data", None), ("execute_result", None)}, f"cell {cell.id}"
        found = [line for text in texts(cell) for line in complaints(text)]
        assert not found, f"cell {cell.id}: {found[0]}"
        assert not pictures(cell) or cell.metadata.get("alt"), f"cell {cell.id}: say in its metadata what is to be seen"
        assert len(pictures(cell)) <= 1, f"cell {cell.id}: pictures are named by cell"
        for picture in pictures(cell):
            width, height = Image.open(io.BytesIO(base64.b64decode(picture))).size
            assert 300 <= width <= 1600
            assert 200 <= height <= 1200
            shown += 1
    assert shown >= 2


@each
def test_sizes_come_first(path):
    """One cell, the first, says how much is done; and prose stands between the parts."""
    book = read(path)
    first, *rest = code_cells(book)
    assert f'os.environ.get("{SIZE}") == "small"' in first.source
    assert all(SIZE not in cell.source for cell in rest)
    assert book.cells[0].source.startswith("# ")
    assert sum(cell.source.startswith("## ") for cell in book.cells) >= 5


def test_this_file_finds_what_should_not_be_shown():
    for text in (
        "saved in /home/someone/runs",
        "see 'C:\\Users\\x'",
        "a UserWarning: no",
        "in ~/runs",
        "Traceback (most",
    ):
        assert complaints(text), text
    for text in ("37 steps/s", "1/3 of zoo/seed1", "runs/mpe-pp/poam", "5 / 3", "and/or"):
        assert not complaints(text), text
