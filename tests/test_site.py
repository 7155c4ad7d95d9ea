"""The documentation as a site: it builds without a warning, shows every public name, and needs no network."""

import json
import os
import re
import subprocess
import sys
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest

import naht

ROOT = Path(__file__).parent.parent
NEEDED = ("mkdocs", "material", "mkdocstrings", "latex2mathml")
missing = [name for name in NEEDED if find_spec(name) is None]
needs_mkdocs = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (make docs installs it)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def words(path: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", path.read_text()))


@needs_mkdocs
@pytest.mark.xdist_group("site")
def test_every_public_name_is_on_the_reference_page(site):
    text = words(site / "reference.html")
    for name in naht.__all__:
        assert re.search(rf"naht\.{name}\b", text), f"the reference does not show naht.{name}"


@needs_mkdocs
@pytest.mark.xdist_group("site")
def test_tables_follow_the_registries(site):
    from naht.agents.scripted import BOTS
    from naht.learning.algorithms import ALGORITHMS
    from naht.tasks import TASKS

    tasks, algorithms = words(site / "tasks.html"), words(site / "algorithms.html")
    for name, task in TASKS.items():
        assert name in tasks
        assert task.description in tasks
    for bots in BOTS.values():
        assert all(name in tasks for name in bots)
    for name, algorithm in ALGORITHMS.items():
        assert name in algorithms
        assert algorithm.description in algorithms


@needs_mkdocs
@pytest.mark.xdist_group("site")
def test_nothing_is_loaded_from_the_network(site):
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = path.read_text()
        loaded = re.findall(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text)
        loaded += re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\s\"')]*", text)
        assert not loaded, f"{path.name}: {loaded[0]}"


@needs_mkdocs
@pytest.mark.xdist_group("site")
def test_nothing_is_left_unconverted(site):
    """Markers, mathematics and links out of docs/ have all become something."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert 'class="arithmatex"' not in text, path.name
        assert "<!-- table" not in text, path.name
        assert "<!-- api" not in text, path.name
        for target in re.findall(r'href="(?![a-z]+:)([^"#?]+)', text):
            assert target.startswith("/") or (path.parent / target).exists(), f"{path.name} links to {target}"


@needs_mkdocs
@pytest.mark.xdist_group("site")
def test_search_knows_the_pages(site):
    index = (site / "search" / "search_index.json").read_text()
    assert {"concepts.html", "reference.html"} <= {doc["location"] for doc in json.loads(index)["docs"]}


@needs_mkdocs
@pytest.mark.xdist_group("site")
@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_pages_with_what_they_showed(site, path):
    page = (site / "notebooks" / f"{path.stem}.html").read_text()
    assert (site / "notebooks" / path.name).exists()  # to download
    found = words(site / "notebooks" / f"{path.stem}.html")
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert "".join(cell["source"]) in found
        for output in cell.get("outputs", []):
            assert "".join(output.get("text", "")).rstrip() in found
            if "image/png" in output.get("data", {}):
                (shown,) = re.findall(rf'<img alt="[^"]+" src="({path.stem}-{cell["id"]}\.png)"', page)
                assert (site / "notebooks" / shown).read_bytes().startswith(b"\x89PNG")


def test_every_document_has_its_place():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w/]+\.md\b", text.partition("\nnav:")[2])
    for path in ROOT.glob("docs/*.md"):
        assert path.name in listed, f"mkdocs.yml does not list docs/{path.name}"
    for path in ROOT.glob("docs/notebooks/*.ipynb"):
        assert f"notebooks/{path.stem}.md" in listed, f"mkdocs.yml does not list docs/notebooks/{path.name}"


def test_drawings_are_those_of_the_script(tmp_path):
    script = ROOT / "docs" / "drawings" / "draw.py"
    copy = tmp_path / "draw.py"
    copy.write_text(script.read_text())
    subprocess.run([sys.executable, str(copy)], check=True, timeout=60)
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == sorted(path.name for path in script.parent.glob("*.svg"))
    for name in drawn:
        assert (tmp_path / name).read_text() == (script.parent / name).read_text(), f"run docs/drawings/draw.py: {name}"
