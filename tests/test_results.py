"""Committed results are what the committed rows say: the document, its figures and README's part are made of them."""

import re
from math import isclose
from pathlib import Path

import pytest

from naht.report.markdown import BEGIN, END, fill_in, write_document
from naht.study.story import content_of

pytestmark = pytest.mark.xdist_group("results")

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def assert_same_text(made: str, kept: str) -> None:
    """Equal but for what another processor may round another way: one in the last digit of a number."""
    assert NUMBER.split(made) == NUMBER.split(kept)
    for ours, theirs in zip(NUMBER.findall(made), NUMBER.findall(kept), strict=True):
        digits = max(len(text.partition(".")[2]) for text in (ours, theirs))
        assert isclose(float(ours), float(theirs), abs_tol=1.01 * 10**-digits if digits else 0.0), (ours, theirs)


@pytest.fixture(scope="module")
def content():
    return content_of(ROOT / "results")


def test_the_document_and_its_figures_are_made_of_the_rows(content, tmp_path):
    made = write_document(content, tmp_path / "results.md")
    for path in made:
        assert_same_text(path.read_text(), (ROOT / "docs" / path.relative_to(tmp_path)).read_text())
    figures = {path.name for path in made[1:]}
    assert figures
    assert figures == {path.name for path in (ROOT / "docs/results").glob("*.svg")}  # none is left over


def test_readme_has_the_table_of_the_rows(content, tmp_path):
    kept = (ROOT / "README.md").read_text()
    emptied = tmp_path / "README.md"
    emptied.write_text(re.sub(f"{BEGIN}.*{END}", f"{BEGIN}{END}", kept, flags=re.DOTALL))
    assert emptied.read_text() != kept
    fill_in(content, emptied)
    assert_same_text(emptied.read_text(), kept)


def test_another_number_is_not_the_same_text():
    assert_same_text("25.9 ± 1.3, 5 seeds", "25.8 ± 1.3, 5 seeds")
    for other in ("25.7 ± 1.3, 5 seeds", "25.9 ± 1.3, 4 seeds", "25.9 ± 1.3, five seeds"):
        with pytest.raises(AssertionError):
            assert_same_text("25.9 ± 1.3, 5 seeds", other)
