"""What mkdocs does not do by itself, for the site of the documentation (make docs).

- `<!-- table: tasks -->` in a page becomes a table of what the registries hold, `<!-- api: NAME ... -->` the
  docstrings of public names.
- Links to files outside of docs/, which work in the repository, lead to pages made of these files.
- Notebooks become pages, with what they showed when they were run.
- Drawings stand in the page itself, so that they follow its light or dark scheme.
- $mathematics$ becomes MathML, which browsers draw without a script.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

import naht
from naht.agents.scripted import BOTS, OFFERED, bots_of
from naht.agents.zoo import find_agents, zoo_tasks
from naht.learning.algorithms import ALGORITHMS
from naht.tasks import TASKS

ROOT = Path(__file__).parent.parent
SOURCES = "source"
"""Where pages made of files outside of docs/ are."""
NOTEBOOKS = "notebooks"
INCLUDED = {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md")} | {"README.md": "tour.md"}
"""Documents outside of docs/ that are pages like those inside, and where. (mkdocs takes a README for an index.)"""
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}
SHOWN = 200_000
"""Characters of a file that are shown at most."""
OUTWARD = re.compile(r"\]\(\.\./([^)#\s]+?)/?\)")

log = logging.getLogger("mkdocs.hooks.naht")


# -- tables


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def tasks() -> str:
    rows = []
    for name, task in TASKS.items():
        s = task.make().spec
        sizes = [str(n) for n in (s.num_agents, s.num_actions, s.obs_size, s.horizon)]
        strangers = ", ".join(f"`{mate}`" for mate in task.teammates)
        rows.append([f"`{name}`", task.description, *sizes, strangers, ", ".join(task.presets)])
    return table(["task", "what it is", "M", "actions", "observation", "horizon", "strangers", "presets"], rows)


def algorithms() -> str:
    trained = {"uniform": "with strangers, N uniform on 1..M-1", "all": "in self-play"}
    rows = []
    for name, a in ALGORITHMS.items():
        how = trained.get(str(a.num_controlled), f"with strangers, N = {a.num_controlled}")
        changed = ", ".join(f"`{key}` {value}" for key, value in a.identity.items())
        rows.append([f"`{name}`", a.description, how, f"`{a.settings.__name__}`", changed])
    return table(["algorithm", "what it is", "trained", "settings", "of them, its own"], rows)


def teammates() -> str:
    """Tasks with the same bots share a row."""
    of: dict[tuple[str, str], list[str]] = {}
    for task in dict.fromkeys([*BOTS, *(teammate.task for teammate in OFFERED.values())]):
        for name, bot in bots_of(task).items():
            of.setdefault((name, bot.description), []).append(f"`{task}`")
    rows = [[f"`{name}`", ", ".join(where), what] for (name, what), where in of.items()]
    for task in zoo_tasks():
        groups: dict[str, int] = {}
        for path in find_agents(f"zoo/{task}") or ():
            algorithm = Path(path).stem.rsplit("-", 1)[0]
            groups[algorithm] = groups.get(algorithm, 0) + 1
        rows += [[f"`zoo/{name}`", f"`{task}`", f"{count} trained teams"] for name, count in groups.items()]
    return table(["teammate", "tasks", "what it does"], rows)


TABLES: dict[str, Callable[[], str]] = {"tasks": tasks, "algorithms": algorithms, "teammates": teammates}


# -- the reference


def reference(names: list[str]) -> str:
    """Docstrings by mkdocstrings. Named tuples explain their fields in comments, so their source is shown."""
    blocks = []
    for name in names:
        thing = getattr(naht, name)
        options = {"heading": f"naht.{name}", "toc_label": name}
        if hasattr(thing, "_fields"):
            options |= {"show_source": "true", "members": "false"}
        elif is_dataclass(thing):
            options |= {"show_if_no_docstring": "true"}
        lines = [f"::: naht.{name}", "    options:", *(f"      {key}: {value}" for key, value in options.items())]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def complain_of_missing(markdown: str) -> None:
    shown = [name for group in re.findall(r"<!-- api: (.*?) -->", markdown, re.S) for name in group.split()]
    for name in {*naht.__all__} - {*shown}:
        log.warning("reference.md does not show the public name naht.%s", name)
    for name in {*shown} - {*naht.__all__}:
        log.warning("reference.md shows naht.%s, which is not public", name)


# -- files outside of docs/


def page_of(target: str) -> str:
    """Where a file or folder outside of docs/ is in the site."""
    return INCLUDED.get(target, f"{SOURCES}/{target}.md")


def shown(path: Path) -> str:
    text = path.read_text()[:SHOWN]
    if path.suffix == ".md":
        return text
    fence = "`" * 4
    return f"{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"


def content_of(target: str) -> str:
    """A page of a file, of the files of a folder, or of their names if they are data."""
    path = ROOT / target
    if path.is_file():
        return f"# {target}\n\n{shown(path)}"
    files = sorted(p for p in path.rglob("*") if p.is_file() and not {"__pycache__"} & {*p.parts})
    files = [p for p in files if ".egg-info" not in str(p)]
    if all(p.suffix in (".py", ".toml", ".md") for p in files):
        files.sort(key=lambda p: p.name != "README.md")
        parts = []
        for p in files:
            if p.name == "README.md":
                parts.append(shown(p))
            elif p.stat().st_size > 200:
                parts.append(f"## {p.relative_to(path).as_posix()}\n\n{shown(p)}")
        return "\n".join(parts)
    names = "\n".join(f"{p.relative_to(path).as_posix()}  ({p.stat().st_size:,} bytes)" for p in files)
    return f"# {target}\n\nFiles of this folder in the repository:\n\n```text\n{names}\n```\n"


# -- notebooks


def to_pages(markdown: str) -> str:
    """Links to notebooks lead to the pages made of them."""
    return re.sub(r"(\]\([^)\s]*)\.ipynb([#)])", r"\1.md\2", markdown)


def fenced(text: str, kind: str) -> str:
    fence = "`" * 4
    return f"{fence} {kind}\n{text.rstrip()}\n{fence}"


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A page of a notebook and its outputs, and the pictures of that page by name."""
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(to_pages(source))
            continue
        blocks.append(fenced(source, "python"))
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"{path.stem}-{cell['id']}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                blocks.append(f"![{cell['metadata']['alt']}]({name})")
            else:
                blocks.append(fenced("".join(data["text/plain"]), "{ .text .output .no-copy }"))
    title, *rest = blocks
    offer = f"This page is [a notebook]({path.name}) to run in Jupyter, and what it showed when it was run."
    return "\n\n".join([title.partition("\n")[0], offer, title.partition("\n")[2], *rest]) + "\n", pictures


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")  # anchors as in the repository
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in INCLUDED.items():
        text = re.sub(r"\]\((?!https?:|#|docs/)([^)\s]+)\)", r"](../\1)", (ROOT / name).read_text())
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    wanted: set[str] = set()
    for file in files.documentation_pages():
        wanted |= set(OUTWARD.findall(file.content_string))
    for path in sorted((ROOT / "docs" / NOTEBOOKS).glob("*.ipynb")):
        text, pictures = notebook(path)
        files.append(File.generated(config, f"{NOTEBOOKS}/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"{NOTEBOOKS}/{name}", content=content))
    for target in sorted(wanted - {*INCLUDED}):
        if not (ROOT / target).exists():
            log.warning("a page links to %s, which does not exist", target)
            continue
        made = File.generated(config, page_of(target), content=content_of(target))
        made.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    del config, files
    if page.file.src_uri.startswith((f"{SOURCES}/", f"{NOTEBOOKS}/")):
        return markdown
    if page.file.src_uri == "reference.md":
        complain_of_missing(markdown)
    markdown = OUTWARD.sub(lambda m: f"]({page_of(m[1])})", markdown)
    markdown = to_pages(markdown)
    markdown = re.sub(r"<!-- table: (\w+) -->", lambda m: TABLES[m[1]](), markdown)
    return re.sub(r"<!-- api: (.*?) -->", lambda m: reference(m[1].split()), markdown, flags=re.S)


# -- drawings and mathematics


def drawing(match: re.Match[str]) -> str:
    alt, name = match["alt"], match["name"]
    svg = (ROOT / "docs" / "drawings" / name).read_text()
    svg = re.sub(r"<\?xml.*?\?>\s*", "", svg)
    return f'<figure class="drawing" role="img" aria-label="{alt}">{svg}</figure>'


def mathematics(match: re.Match[str]) -> str:
    block = match["tag"] == "div"
    latex = html.unescape(match["latex"]).strip()
    made = convert(latex[2:-2].strip(), display="block" if block else "inline")
    return f'<div class="equation">{made}</div>' if block else made


def on_page_content(content: str, **_: Any) -> str:
    content = content.replace('<details class="mkdocstrings-source">', '<details class="mkdocstrings-source" open>')
    content = re.sub(
        r'<p><img alt="(?P<alt>[^"]*)" src="(?:[^"]*/)?drawings/(?P<name>[\w-]+\.svg)"\s*/?></p>', drawing, content
    )
    return re.sub(r'<(?P<tag>div|span) class="arithmatex">(?P<latex>.*?)</(?P=tag)>', mathematics, content, flags=re.S)


def own_search(output: str, root: str) -> str:
    """Search works from files, too, by a script of ours instead of one from the network."""
    return output.replace('src="https://unpkg.com/iframe-worker/shim"', f'src="{root}offline_search.js"')


def on_post_page(output: str, page: Page, **_: Any) -> str:
    return own_search(output, "../" * page.url.count("/"))


def on_post_template(output: str, **_: Any) -> str:
    return own_search(output, "/")  # of pages that are not there, whose place is not known
