"""Slurm's commands as far as submitit calls them, on this machine: a folder of programs for the front of PATH.

A job is a process; its state is a file. `scancel` sends SIGTERM to it, `scancel --signal` any signal; `scontrol
requeue` lets it begin again when its present turn has ended, as Slurm does.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """#!{python}
import os, re, signal, subprocess, sys, time
from pathlib import Path
jobs, name, words = Path({jobs!r}), Path(sys.argv[0]).name, sys.argv[1:]
state = lambda job: jobs / f"{{job}}.state"
if name == "sbatch":
    job = str(time.monotonic_ns() // 1000)  # submitit remembers numbers for as long as its process lives
    (jobs / f"{{job}}.sh").write_text(Path(words[-1]).read_text())
    state(job).write_text("PENDING")
    subprocess.Popen([sys.executable, sys.argv[0], job], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                     start_new_session=True)
    print(f"Submitted batch job {{job}}")
elif name == "srun":
    while words[0].startswith("-"):
        words = words[2 if words[0] in ("--output", "--error") else 1:]
    os.execvp(words[0], words)
elif name == "sacct":
    print("JobID|State|NodeList")
    for job in [words[i + 1] for i, word in enumerate(words) if word == "-j" and state(words[i + 1]).exists()]:
        print(f"{{job}}|{{state(job).read_text()}}|here")
elif name == "scontrol":
    (jobs / f"{{words[1]}}.again").touch()
elif name == "scancel":
    job = next(word for word in words if word.isdecimal())
    wanted = words[words.index("--signal") + 1] if "--signal" in words else "SIGTERM"
    number = getattr(signal, wanted if wanted.startswith("SIG") else f"SIG{{wanted}}")
    if "--signal" not in words:
        (jobs / f"{{job}}.cancelled").touch()
    try:
        os.kill(int((jobs / f"{{job}}.pid").read_text()), number)
    except (FileNotFoundError, ProcessLookupError):
        state(job).write_text("CANCELLED by 0")
"""

RUN = """
import os, subprocess, sys
from pathlib import Path
jobs, job = Path({jobs!r}), sys.argv[1]
state, again = jobs / f"{{job}}.state", jobs / f"{{job}}.again"
while True:
    again.unlink(missing_ok=True)
    log = open(jobs / f"{{job}}.log", "a")
    script = (jobs / f"{{job}}.sh").read_text().replace("srun ", "exec srun ")  # so that signals reach the task
    one = {{"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}}
    variables = os.environ | one | {{"SLURM_JOB_ID": job, "SLURM_LOCALID": "0"}}
    turn = subprocess.Popen(["bash", "-c", script], stdout=log, stderr=log, env=variables)
    (jobs / f"{{job}}.pid").write_text(str(turn.pid))
    state.write_text("RUNNING")
    code = turn.wait()
    if (jobs / f"{{job}}.cancelled").exists():
        state.write_text("CANCELLED by 0")
    elif again.exists():
        state.write_text("REQUEUED")
        continue
    else:
        state.write_text("COMPLETED" if code == 0 else "NODE_FAIL" if code < 0 else "FAILED")
    break
"""


def install(folder: Path) -> Path:
    """Write the programs; returns the folder for the front of PATH."""
    jobs, programs = folder / "jobs", folder / "bin"
    jobs.mkdir(parents=True)
    programs.mkdir()
    (folder / "run.py").write_text(RUN.format(jobs=str(jobs)))
    text = PROGRAM.format(python=sys.executable, jobs=str(jobs)).replace(
        "[sys.executable, sys.argv[0], job]", f"[sys.executable, {str(folder / 'run.py')!r}, job]"
    )
    for name in ("sbatch", "srun", "sacct", "scancel", "scontrol"):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs
