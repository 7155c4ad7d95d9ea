"""The documents are true: their commands parse, their Python is real, their links lead somewhere.

Nothing is skipped silently: a command, flag or placeholder that this file does not understand is a failure.
"""

import argparse
import ast
import inspect
import json
import pkgutil
import re
import runpy
import shlex
import sys
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

import naht
from naht.cli import COMMANDS, main
from naht.plugins import GROUPS

ROOT = Path(__file__).parent.parent
MARKDOWN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
SCRIPTS = sorted([*ROOT.glob("examples/*.py"), *ROOT.glob("benchmarks/*.py")])

PLACEHOLDERS = {
    "TASK": "mpe-pp",
    "ALGORITHM": "poam",
    "PRESET": "paper",
    "STUDY": "bit-game",
    "COMMAND": "list",
    "RUN": "runs/bit-game/poam/seed0",
    "FOLDER": "runs",
    "FILE": "folder/file.safetensors",
    "POPULATION": "zoo/mpe-pp",
    **dict.fromkeys(("AGENT", "OTHER", "A", "B", "C", "U"), "zoo/mpe-pp/vdn-seed3"),
    **dict.fromkeys(("STEPS", "SEED", "K", "N"), "1"),
}
"""What words in capitals stand for in the documents' commands."""

BEFORE = r"(?:\w+=\S+ )*(?:\.venv/bin/)?"
"""What may stand before a program: variables, and where it is."""

NOT_RUN = {"docs/starcraft.md": "needs StarCraft II"}
if find_spec("jaxmarl") is None:
    NOT_RUN["docs/jaxmarl.md"] = "needs jaxmarl, which only an extra brings"
"""Documents whose Python is compiled, and its names and calls looked up, but not run."""

SHORTER = {"README.md": ("steps=20_000", "steps=2_000")}
"""What is changed in a document's Python so that it runs in seconds."""


class Quote(NamedTuple):
    """A command or flags, and where they stand."""

    place: str
    text: str
    whole: bool
    """A line to type, rather than a name in a sentence: nothing may be missing."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pieces(text: str) -> list[tuple[int, str, str]]:
    """(line number, kind, text) of all that is typeset as code: lines of fenced blocks (of the kind that the fence
    names), indented lines, and `inline` code, which may be broken over two lines."""
    found: list[tuple[int, str, str]] = []
    prose: list[str] = []
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*```(\w*)", line)
        if mark:
            fence = mark[1] if fence is None else None
        elif fence is not None:
            found.append((number, fence, line))
        elif line.startswith("    "):
            found.append((number, "indented", line))
        prose.append("" if mark or fence is not None or line.startswith("    ") else line)
    sentences = "\n".join(prose)
    return found + [
        (sentences.count("\n", 0, match.start()) + 1, "inline", " ".join(match[1].split()))
        for match in re.finditer(r"`([^`]+)`", sentences)
    ]


def quotes(name: str, text: str) -> list[Quote]:
    """Commands and flags of a document, and those in the explanations beside its commands."""
    found = []
    for number, kind, code in pieces(text):
        place = f"{name}:{number}"
        if kind == "inline":
            found.append(Quote(place, re.sub(f"^{BEFORE}", "", code.replace(r"\|", "|")), whole=False))
        elif kind in ("sh", "indented") and code.strip() and not code.strip().startswith("#"):
            command, *beside = re.split(r"\s+#\s+" if kind == "sh" else r"\s+#\s+|\s{2,}", code.strip(), maxsplit=1)
            command = re.sub(f"^{BEFORE}", "", command)
            found.append(Quote(place, command, whole=True))
            if command.startswith("naht "):
                mentioned = re.findall(r"\((naht [^)]*)\)|(--[a-z][\w.-]*)", " ".join(beside))
                found += [Quote(place, words or flag, whole=False) for words, flag in mentioned]
    return found


def cells(path: Path, kind: str) -> list[str]:
    """What stands in a notebook's cells of a kind."""
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def text_of(path: Path) -> str:
    """What people read: the whole of a document, the prose of a notebook, the docstring of a script."""
    if path.suffix == ".md":
        return path.read_text()
    if path.suffix == ".ipynb":
        return "\n\n".join(cells(path, "markdown"))
    lines = (ast.get_docstring(ast.parse(path.read_text()), clean=False) or "").splitlines()
    return "\n".join(re.sub(r"^(naht|make|python) ", r"    \1 ", line) for line in lines)


def commands_of_makefile() -> list[Quote]:
    """`make demo` is too long for a test, and the first thing that anybody tries."""
    text = (ROOT / "Makefile").read_text()
    for variable, value in re.findall(r"^(\w+) :?= (.*)$", text, re.M):
        text = text.replace(f"$({variable})", value)
    found = [(number, line) for number, line in enumerate(text.splitlines(), 1) if "/bin/naht " in line]
    return [
        Quote(f"Makefile:{number}", command.strip(), whole=True)
        for number, line in found
        for command in re.findall(r"/bin/(naht [^;\\]*)", line)
    ]


QUOTES = [quote for path in MARKDOWN + NOTEBOOKS + SCRIPTS for quote in quotes(name_of(path), text_of(path))]
QUOTES += commands_of_makefile()


def starting_with(text: str) -> list[Quote]:
    return [quote for quote in QUOTES if quote.text.startswith(text)]


NAHT = starting_with("naht ")


def each(found: list[Quote]) -> pytest.MarkDecorator:
    """A test for each place and text."""
    once = list(dict.fromkeys(found))
    return pytest.mark.parametrize("quote", once, ids=[f"{quote.place} {quote.text}" for quote in once])


def spelled_out(text: str) -> list[list[str]]:
    """The words of the command that is meant: real names for placeholders, a command for each of a|b."""
    choices = []
    for word in shlex.split(text):
        unknown = [w for w in word.split("|") if re.fullmatch("[A-Z][A-Z_]*", w) and w not in PLACEHOLDERS]
        assert not unknown, f"'{text}': say in PLACEHOLDERS of this test what {unknown[0]} stands for"
        choices.append([PLACEHOLDERS.get(w, w) for w in word.split("|")])
    return [list(words) for words in product(*choices)]


class Parsed(Exception):
    """Raised in place of a command's work, with its settings."""


def strange_names(words: list[str], settings: object) -> list[str]:
    """Agents and algorithms that do not exist. The command line takes any text for them and looks later, at work.

    Paths are the reader's own, but a run's folder says which task and algorithm it is of.
    """
    from naht.agents.scripted import make_bot
    from naht.agents.zoo import ZOO, find_agents
    from naht.learning.algorithms import ALGORITHMS
    from naht.tasks import TASKS, make_env

    parts = {part for word in words for part in word.split("/")}
    tasks = [task for task in TASKS if task in parts] or list(TASKS)

    def is_agent(word: str, task: str) -> bool:
        try:
            return bool(find_agents(word, task) or make_bot(word, make_env(task).spec))
        except naht.NahtError:
            return False

    strange, flag = [], ""
    for word in words[1:]:
        run = re.search(r"([^/]+)/([^/]+)/seed\d+$", word)
        if word.startswith("--"):
            flag, known = word, True
        elif word.split("/")[0] == ZOO:
            known = any(is_agent(word, task) for task in tasks)
        elif run:
            known = run[1] in TASKS and run[2] in ALGORITHMS
        elif flag == "--algorithms":
            known = word in ALGORITHMS
        elif flag in ("--teammates", "--teams.teammates") or word in getattr(settings, "agents", ()):
            known = "/" in word or ".py:" in word or any(is_agent(word, task) for task in tasks)
        else:
            known = True
        if not known:
            strange.append(word)
    return strange


@pytest.fixture
def refusal(monkeypatch, capsys, tmp_path):
    """Why the real command line refuses a command; "" if it would go to work now, which it is kept from."""
    monkeypatch.chdir(tmp_path)
    modules = [
        import_module(f"naht.commands.{m.name}") for m in pkgutil.iter_modules(import_module("naht.commands").__path__)
    ]
    for module in modules:
        real = getattr(module, "parse", None)
        if real and module.__name__ != "naht.commands.parsing":

            def stop_there(*args, real=real, **kwargs):
                raise Parsed(real(*args, **kwargs))

            monkeypatch.setattr(module, "parse", stop_there)

    def ask(words: list[str]) -> str:
        try:
            code = main(words[1:])
        except Parsed as e:
            (settings,) = e.args
            required = [f.name for f in fields(settings) if f.default is MISSING and f.default_factory is MISSING]
            missing = [name for name in required if getattr(settings, name) == ()]
            strange = strange_names(words, settings)
            return f"{missing[0]} missing" if missing else f"there is no {strange[0]}" if strange else ""
        complaint = capsys.readouterr().err.strip()
        return "" if code == 0 and "--help" in words else complaint or "its flags were not parsed"

    return ask


def names_a_command(words: list[str], capsys) -> bool:
    """In a sentence, a command may be named without its arguments: its help then begins with that name."""
    return main([*words[1:], "--help"]) == 0 and capsys.readouterr().out.startswith(f"usage: {' '.join(words)} ")


@each(NAHT)
def test_command(quote, refusal, capsys):
    for words in spelled_out(quote.text):
        reason = refusal(words)
        named = reason and not quote.whole and names_a_command(words, capsys)
        assert not reason or named, f"{quote.place}: {' '.join(words)}: {reason}"


def places_for_flags() -> list[str]:
    """Training of every kind of task by every learner, and all documented commands that begin differently."""
    from naht.learning.algorithms import ALGORITHMS
    from naht.tasks import TASKS, make_env

    tasks = {type(make_env(name)): name for name in TASKS}
    learners = {algorithm.settings: name for name, algorithm in ALGORITHMS.items()}
    runs = [f"naht train {task} {algorithm}" for algorithm in learners.values() for task in tasks.values()]
    documented = {tuple(quote.text.split()[:3]): quote.text for quote in NAHT if quote.whole}
    return runs + [text for text in documented.values() if not text.startswith("naht train ")]


def flags_refusal(text: str, refusal) -> str:
    """Why no command takes these flags; "" if one does. A flag alone is a name, which may want a value."""
    reasons = []
    for flags in spelled_out(text):
        for place in places_for_flags():
            reason = refusal([*spelled_out(place)[0], *flags])
            if not reason or (len(flags) == 1 and reason.startswith("naht: Missing value for argument")):
                break
            reasons.append(f"{place}: {reason}")
        else:
            return "no command takes it. " + reasons[0]
    return ""


@each(starting_with("--"))
def test_flag(quote, refusal):
    reason = flags_refusal(quote.text, refusal)
    assert not reason, f"{quote.place}: {quote.text}: {reason}"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("naht train bit-game poam --no-algorithm.uncontrolled-data", "Unrecognized options"),
        ("naht train bit-game poam --algorithm.uncontroled-data", "did you mean --algorithm.uncontrolled-data"),
        ("naht train bit-game poam --algorithm.lr fast", "could not convert"),
        ("naht train bit-game poma", "unknown algorithm"),
        ("naht train bit-game poam --preset papr", "unknown preset"),
        ("naht train mpe-pp poam --teams.teammates pincer nearest", "there is no nearest"),
        ("naht train 3m poam --teams.teammates nearest zoo/vdn", "there is no zoo/vdn"),
        ("naht trian bit-game poam", "unknown command"),
        ("naht resume", "runs missing"),
        ("naht evaluate", "agents missing"),
        ("naht evaluate zoo/mpe-pp/poam", "there is no zoo/mpe-pp/poam"),
        ("naht evaluate runs/mpe-p/poam/seed0", "there is no runs/mpe-p/poam/seed0"),
        ("naht population bild mpe-pp", "unknown population command"),
        ("naht reproduce bit-game --preset papr", "invalid choice"),
        ("naht list task", "did you mean tasks?"),
    ],
)
def test_this_file_finds_a_wrong_command(refusal, command, sentence):
    assert sentence in refusal(command.split())


def test_this_file_finds_a_wrong_flag(refusal, capsys):
    assert not flags_refusal("--algorithm.mixing", refusal)
    assert not flags_refusal("--task.rules smaclite", refusal)
    for wrong in ("--no-algorithm.modelling", "--task.rules sc3", "--algorithm.mixing most", "--preset papers"):
        assert flags_refusal(wrong, refusal), wrong
    assert names_a_command(["naht", "population", "build"], capsys)
    assert not names_a_command(["naht", "population", "bild"], capsys)
    assert not names_a_command(["naht", "train", "bit-gam"], capsys)
    with pytest.raises(AssertionError, match="say in PLACEHOLDERS"):
        spelled_out("naht train SOMETHING poam")


def test_this_file_finds_commands_wherever_they_stand():
    text = """Say `naht a` or `naht
b x\\|y`, not `naht`; also `--c d`.

```sh
naht e   # see (naht f), or --g h
NAHT_DEVICES=4 .venv/bin/naht i "j  k"
```

    naht l   --m is explained (naht n)
    naht o -p 'q'
    naht = nothing
"""
    assert [(quote.place, quote.text, quote.whole) for quote in quotes("X", text)] == [
        ("X:5", "naht e", True),
        ("X:5", "naht f", False),
        ("X:5", "--g", False),
        ("X:6", 'naht i "j  k"', True),
        ("X:9", "naht l", True),
        ("X:9", "--m", False),
        ("X:9", "naht n", False),
        ("X:10", "naht o -p 'q'", True),
        ("X:11", "naht = nothing", True),
        ("X:1", "naht a", False),
        ("X:1", "naht b x|y", False),
        ("X:2", "naht", False),
        ("X:2", "--c d", False),
    ]
    assert spelled_out("naht b x|y RUN") == [["naht", "b", c, "runs/bit-game/poam/seed0"] for c in "xy"]


@pytest.mark.parametrize("path", MARKDOWN, ids=name_of)
def test_no_command_is_overlooked(path):
    """As many are found as by a plain search for their names, at the start of a line, of code or of a bracket."""
    searched = re.findall(rf"(?:^[ \t]*|`|\(){BEFORE}naht\s+(?:{'|'.join(COMMANDS)})\b", path.read_text(), re.M)
    assert len([quote for quote in NAHT if quote.place.startswith(f"{name_of(path)}:")]) >= len(searched)
    if path.name in ("README.md", "CHANGELOG.md", "populations.md", "predator_prey.md", "smac.md"):
        assert searched


def test_blocks_are_of_kinds_that_are_checked():
    for path in MARKDOWN:
        for number, kind, line in pieces(path.read_text()):
            place = f"{name_of(path)}:{number}: {line}"
            assert kind in ("sh", "python", "text", "indented", "inline"), f"{place}: call the block sh, python or text"
            program = re.sub(f"^{BEFORE}", "", line.strip()).split(" ")[0]
            assert kind != "sh" or program in ("naht", "make", "python", "#", ""), f"{place}: who checks {program}?"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_commands_that_parse(command, refusal, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    _usage, _, explained = capsys.readouterr().out.partition("\n\n")
    shown = re.findall(r"(?:^  |: +|`)(naht [a-z][^`]*?)(?:  |\.?$|`)", explained, re.M)
    for text in [*shown, *re.findall(r"naht .*", COMMANDS[command])]:
        for words in spelled_out(text):
            reason = refusal(words)
            assert not reason, f"naht {command} --help: {text}: {reason}"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("list tasks", "mpe-pp"),
        ("list algorithms", "poam"),
        ("population list", "vdn-seed3"),
        ("population show zoo/mpe-pp/vdn-seed3", "sha256"),
    ],
)
def test_quick_commands_work(command, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    assert expected in capsys.readouterr().out


@each(starting_with("make "))
def test_make_target(quote):
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z]+):", makefile, re.M)
    for word in shlex.split(quote.text)[1:]:
        name, is_variable, value = word.partition("=")
        assert (f"$({name})" in makefile) if is_variable else (word in targets), f"{quote.place}: make {word}"
        for path in re.findall(r"tests/\S+", value):
            assert (ROOT / path).is_file(), f"{quote.place}: there is no {path}"


@each([quote for quote in starting_with("python ") if " -m smac." not in quote.text])  # SMAC's own, not installed here
def test_script(quote, monkeypatch):
    """Its arguments are parsed by the script itself, which is then kept from going on."""
    _, script, *arguments = shlex.split(quote.text)
    source = (ROOT / script).read_text()
    if "parse_args()" not in source:
        assert not arguments, f"{quote.place}: {script} takes no arguments"
        return
    real = argparse.ArgumentParser.parse_args

    def stop_there(parser):
        raise Parsed(real(parser))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop_there)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / script), run_name="__main__")


@pytest.mark.parametrize("path", MARKDOWN + NOTEBOOKS, ids=name_of)
def test_files_and_links_exist(path):
    text = text_of(path)
    for number, kind, code in pieces(text):
        if kind == "inline" and re.fullmatch(r"[\w/]+\.py|(src|tests|docs|benchmarks|examples)/\S*", code):
            homes = [ROOT / code, ROOT / "src/naht" / code, *(ROOT / "src/naht").rglob(code)]
            assert any(home.exists() for home in homes), f"{name_of(path)}:{number}: there is no {code}"
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        file, _, heading = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), f"{name_of(path)}: there is no {file}"
        if heading:  # as GitHub makes anchors of headings
            headings = re.findall(r"^#+ (.*)$", text_of(there), re.M)
            anchors = [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings]
            assert heading in anchors, f"{name_of(path)}: {file} has no heading {heading}"


def python_blocks(path: Path) -> list[str]:
    """Blocks of Python, each after as many empty lines as puts it where it stands in the document."""
    if path.suffix == ".ipynb":
        return cells(path, "code")
    blocks: list[str] = []
    last = 0
    for number, kind, line in pieces(path.read_text()):
        if kind == "python":
            if number != last + 1:
                blocks.append("\n" * (number - 1))
            blocks[-1] += line + "\n"
            last = number
    return blocks


def check_names(code: str, ours: dict[str, object]) -> None:
    """What code imports from naht or calls naht.something exists, and takes arguments of such names and number.

    Names that it imports are added to `ours`.
    """
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "naht":
            ours |= {a.asname or a.name: pkgutil.resolve_name(f"{node.module}.{a.name}") for a in node.names}
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"naht(\.\w+)+", name := ast.unparse(node)):
            ours[name] = pkgutil.resolve_name(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and callable(function := ours.get(ast.unparse(node.func))):
            keywords = {k.arg: k for k in node.keywords if k.arg}
            spread = len(keywords) < len(node.keywords) or any(isinstance(a, ast.Starred) for a in node.args)
            signature = inspect.signature(function)
            try:
                if spread or "..." in map(ast.unparse, node.args):
                    signature.bind_partial(**keywords)
                else:
                    signature.bind(*node.args, **keywords)
            except TypeError as e:
                raise TypeError(f"line {node.lineno}: {ast.unparse(node)}: {e}") from e


@pytest.mark.parametrize("path", MARKDOWN + NOTEBOOKS + SCRIPTS, ids=name_of)
def test_python_names_what_exists(path):
    ours: dict[str, object] = {}
    for code in [path.read_text()] if path.suffix == ".py" else python_blocks(path):
        check_names(code, ours)
    for number, kind, code in pieces(text_of(path)):
        if kind == "inline" and code not in GROUPS and (re.match(r"naht\.\w", code) or code.partition("(")[0] in ours):
            check_names("\n" * (number - 1) + code, ours)


def test_this_file_finds_wrong_python():
    check_names("import naht\nnaht.train(a, b, report=c)", {})
    for wrong in ("naht.trane(a)", "from naht.agents.saved import Agents", "naht.train(1)", "naht.train(..., rport=1)"):
        with pytest.raises((AttributeError, TypeError)):
            check_names(wrong, {})


@pytest.mark.parametrize("path", [p for p in MARKDOWN if python_blocks(p) and name_of(p) not in NOT_RUN], ids=name_of)
def test_python_runs(path, tmp_path, monkeypatch):
    """The blocks of a document one after the other, as its reader would type them."""
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(path)
    if change := SHORTER.get(name_of(path)):
        assert sum(block.count(change[0]) for block in blocks) == 1
        blocks = [block.replace(*change) for block in blocks]
    names: dict[str, object] = {"__name__": "tour"}
    for block in blocks:
        exec(compile(block, str(path), "exec"), names)


def test_the_teammate_of_the_docs_plays(tmp_path, monkeypatch):
    """docs/populations.md shows bots.py, and commands with bots.py:follow: loading it calls it once."""
    monkeypatch.chdir(tmp_path)
    (block,) = [b for b in python_blocks(ROOT / "docs/populations.md") if b.lstrip().startswith("# bots.py")]
    Path("bots.py").write_text(block)
    (member,) = naht.load_members(["bots.py:follow"], naht.make_env("mpe-pp").spec)
    assert member.name == "bots.py:follow"
