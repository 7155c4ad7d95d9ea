"""Run the notebooks of docs/notebooks from beginning to end and keep what they show: make notebooks."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

FOLDER = Path(__file__).parent / "notebooks"
SIZE = "NAHT_NOTEBOOK_SIZE"
"""The variable that makes notebooks small: for tests, never for what is kept."""
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path, folder: Path, timeout: int | None = None) -> NotebookNode:
    """A notebook with the outputs of a run in `folder`. It is an error if a cell fails, or takes `timeout` seconds."""
    book = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    with tempfile.TemporaryDirectory() as wires:
        # Ports are free only until another process takes them; these sockets are files of our own.
        sockets = {"transport": "ipc", "ip": f"{wires}/k"} if os.name == "posix" else {}
        client = NotebookClient(
            book,
            config=Config({"KernelManager": sockets}),
            timeout=timeout,
            startup_timeout=300,
            resources=resources,
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute()
    return cleaned(book)


def cleaned(book: NotebookNode) -> NotebookNode:
    """Without what differs from one machine or run to the next and tells nobody anything, and with a note of the code
    that the outputs come from."""
    book.metadata = nbformat.from_dict(KERNEL | {"naht": {"ran": digest(book)}})
    for number, cell in enumerate(code_cells(book), 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "image/png" in output.get("data", {}):  # the text beside a picture is what Python calls it
                picture = re.sub(r"\s", "", output.data["image/png"])
                output.data = nbformat.from_dict({"image/png": f"{picture}\n"})
                output.metadata = nbformat.from_dict({})
    return book


def code_cells(book: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def digest(book: NotebookNode) -> str:
    """Of all code of a notebook."""
    return hashlib.sha256("\n\n".join(cell.source for cell in code_cells(book)).encode()).hexdigest()[:16]


def main() -> None:
    os.environ.pop(SIZE, None)
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            book = executed(path, Path(folder))
        nbformat.write(book, path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
