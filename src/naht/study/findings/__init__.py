"""Findings: each is a function from a study's rows to a question, its answer, a figure, a table and verdicts.

Nothing is typed by hand: a number that is shown was computed from rows, and so was every verdict. Where rows are
missing, `naht.study.book.Missing` says so, and the finding is listed as not run.
"""

from __future__ import annotations

from collections.abc import Callable

from naht.report.content import Finding
from naht.study.book import Book
from naht.study.findings.knowledge import embeddings, modelling
from naht.study.findings.methods import (
    bits,
    cells,
    curves,
    imitation,
    normalised,
    pair,
    seats,
    split,
    strangers,
    time,
    told,
    ucd,
)
from naht.study.findings.teams import counts, crossplay

FINDINGS: dict[str, Callable[[Book], Finding]] = {
    "curves": curves,
    "strangers": strangers,
    "split": split,
    "ucd": ucd,
    "modelling": modelling,
    "crossplay": crossplay,
    "counts": counts,
    "bits": bits,
    "cells": cells,
    "told": told,
    "seats": seats,
    "normalised": normalised,
    "embeddings": embeddings,
    "imitation": imitation,
    "pair": pair,
    "time": time,
}
"""By part of a study: what it finds."""
