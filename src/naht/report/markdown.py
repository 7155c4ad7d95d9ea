"""A page's content as Markdown, for documents: questions, answers, verdicts, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from naht.errors import require
from naht.evaluation.statistics import Interval
from naht.report.charts import draw, estimate, number
from naht.report.content import MARKS, Cell, Content, Finding, Published, Table, TaskFindings, Verdict
from naht.storage import write_file


def cell(value: Cell) -> str:
    """As few digits as the interval allows; numbers of the paper that were read off a plot begin with ≈."""
    if value is None:
        return ""
    if isinstance(value, Interval):
        return estimate(value.mean, value.low, value.high)
    if isinstance(value, Published):
        half = value.half_width
        text = estimate(value.mean, *((None, None) if half is None else (value.mean - half, value.mean + half)))
        return f"≈ {text}" if value.read_off else text
    return number(value) if isinstance(value, float) else str(value)


def as_table(table: Table) -> str:
    numeric = [all(not isinstance(row[k], str) for row in table.rows) for k in range(len(table.columns))]
    rules = ["---:" if right else "---" for right in numeric]
    lines = [table.columns, rules, *[[cell(value) for value in row] for row in table.rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_verdicts(verdicts: Sequence[Verdict]) -> str:
    """A table of claims."""
    rows: list[tuple[Cell, ...]] = []
    for v in verdicts:
        seeds = "" if v.seeds is None else " and ".join(dict.fromkeys(map(str, v.seeds)))
        rows.append((f"{MARKS[v.answer]} {v.answer}", v.claim, v.difference, v.improvement, seeds))
    return as_table(Table("", ("", "claim", "difference", "P(better)", "seeds"), tuple(rows)))


def write_document(content: Content, path: Path) -> list[Path]:
    """The content as a Markdown file, with its figures as SVG in a folder beside it. Returns all files."""
    figures = path.parent / path.stem
    files, parts = [path], [f"# {content.title}"]
    parts += [f"- **{v.claim}** {MARKS[v.answer]} {v.answer}. {v.detail}" for v in content.headline]
    if content.lead is not None:
        parts += [f"**{content.lead.title}**", as_table(content.lead)]
    overall = TaskFindings("all", "Over all tasks", content.overall)
    for task in (overall, *content.tasks):
        if task.findings or task.missing:
            parts.append(f"## {task.title}")
        for finding in task.findings:
            text, drawn = _finding(finding, f"{task.task}-{finding.name}", figures)
            parts.append(text)
            files += drawn
        parts += [f"Not run: {line}." for line in task.missing]
    write_file(path, ("\n\n".join(parts) + "\n").encode())
    return files


BEGIN, END = "<!-- results -->", "<!-- /results -->"
"""Between these, a document has the first tables of a page."""


def fill_in(content: Content, path: Path) -> None:
    """Put the page's first table, and what became of the paper's questions and claims, into a document of somebody's
    own."""
    require(path.is_file(), f"there is no file {path}")
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    require(bool(begin and end), f"{path} has no place for results: {BEGIN} and, after it, {END}")
    parts = [f"- {MARKS[v.answer]} {v.answer}: {v.claim} {v.detail}".rstrip() for v in content.headline]
    tables = [content.lead] if content.lead is not None else []
    tables += [table for finding in content.overall if finding.name == "claims" for table in finding.tables]
    shown = [text for table in tables for text in (f"{table.title}:", as_table(table))]
    text = "\n\n".join([BEGIN, "\n".join(parts), *shown, END])
    write_file(path, f"{before}{text}{after}".encode())


def _finding(finding: Finding, name: str, figures: Path) -> tuple[str, list[Path]]:
    parts, files = [f"### {finding.question}", finding.answer], []
    for i, figure in enumerate(finding.figures):
        file = figures / (f"{name}.svg" if i == 0 else f"{name}-{i + 1}.svg")
        write_file(file, draw(figure, file.stem, standalone=True, title=finding.question).encode())
        files.append(file)
        parts.append(f"![{figure.caption or finding.question}]({figures.name}/{file.name})")
    parts += [as_verdicts(finding.verdicts)] if finding.verdicts else []
    parts += [f"**{table.title}**\n\n{as_table(table)}" for table in finding.tables]
    command, line_break, what = finding.made.partition("\n")
    made = f"```sh\n{command}\n```\n\n{what}" if line_break else finding.made
    parts += [*finding.remarks, f"<details><summary>How it was made</summary>\n\n{made}\n\n</details>"]
    return "\n\n".join(parts), files
