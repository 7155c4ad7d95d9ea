"""The package keeps its own rules: layers, public names, docs that match."""

import ast
import re
from pathlib import Path

import naht

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "naht"

LAYERS = [
    {"version", "errors", "terminal"},
    {"plugins"},
    {"config", "cache", "runtime"},
    {"storage", "devices", "pieces"},
    {"envs"},
    {"agents"},
    {"teams"},
    {"rollout", "hosted"},
    {"learning"},
    {"evaluation", "tasks"},
    {"training"},
    {"clusters"},
    {"report", "bridges"},
    {"experiments", "study", "doctor"},
    {"commands"},
    {"cli"},
]
"""What may import what: only from layers above, or the same one."""


def layer_of(module: str) -> int:
    name = module.split(".")[1]
    return next(i for i, names in enumerate(LAYERS) if name in names)


def imports(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    found = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    found += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    return [m for m in found if m.startswith("naht.")]


def test_dependencies_point_one_way():
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts == ("naht", "__init__"):
            continue
        me = layer_of(".".join(parts))
        for module in imports(path):
            assert layer_of(module) <= me, f"{'.'.join(parts)} imports {module}, which is built on top of it"


def test_public_names_exist():
    for name in naht.__all__:
        assert getattr(naht, name) is not None


def test_the_map_in_the_docs_names_every_module():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__init__.py":
            assert path.name in text, f"docs/architecture.md does not mention {path.name}"


def test_commands_in_the_readme_are_real():
    from naht.cli import COMMANDS

    text = (ROOT / "README.md").read_text()
    used = set(re.findall(r"^naht ([\w-]+)", text, re.M))
    assert used
    assert used <= set(COMMANDS)
