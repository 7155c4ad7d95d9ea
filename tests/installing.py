"""Environments of their own, in which packages are installed by pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def fresh_environment(folder: Path) -> str:
    """Make one that finds what naht needs where this Python has it, so that nothing is loaded again; what is installed
    there comes first. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    there = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    here = sysconfig.get_paths()["purelib"]
    (Path(there) / "from_here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return python


def install(python: str, source: Path, work: Path) -> None:
    """Build and install the package of a folder, of which a copy is built: building leaves files behind."""
    copy = work / "source"
    shutil.copytree(
        source, copy, ignore=shutil.ignore_patterns(".*", "runs", "results", "build", "*.egg-info", "tests")
    )
    quiet = ["-q", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *quiet, str(copy)], check=True)
