"""The `naht` command. Quick to start: JAX and all that needs it are imported once a command is chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from naht.errors import Interrupted, NahtError, unknown
from naht.runtime import configure
from naht.version import __version__

COMMANDS = {
    "demo": "the main job, small:       naht demo",
    "train": "train a team:              naht train bit-game poam",
    "resume": "go on with a stopped run:  naht resume runs/bit-game/poam/seed0",
    "evaluate": "play with strangers:       naht evaluate runs/bit-game/poam/seed0",
    "compare": "is one better?             naht compare runs/bit-game/poam --with runs/bit-game/ippo-naht",
    "watch": "see them play:             naht watch runs/bit-game/poam/seed0",
    "curves": "how runs learn:            naht curves runs/bit-game",
    "log": "to TensorBoard, W&B:       naht log runs/bit-game/poam/seed0 --to tensorboard",
    "population": "teams to meet:             naht population list",
    "import-agent": "from ePyMARL:              naht import-agent agent.th --task mpe-pp",
    "export-agent": "to PyTorch or ONNX:        naht export-agent zoo/mpe-pp/vdn-seed3 --format torch",
    "list": "what there is:             naht list tasks",
    "train-prey": "a prey for mpe-pp:         naht train-prey",
    "reproduce": "the paper's study:         naht reproduce mpe-pp",
    "status": "how far is a study?        naht status runs/study",
    "report": "its page:                  naht report runs/study",
    "doctor": "is it fast here?           naht doctor",
}

HOMES = {
    "demo": ("reproducing", "demo_"),
    "train": ("training", "train"),
    "resume": ("training", "resume"),
    "evaluate": ("playing", "evaluate"),
    "compare": ("comparing", "compare_"),
    "watch": ("playing", "watch"),
    "curves": ("playing", "curves"),
    "log": ("training", "log"),
    "population": ("populations", "population"),
    "import-agent": ("foreign", "import_agent_"),
    "export-agent": ("foreign", "export_agent"),
    "list": ("studies", "list_"),
    "train-prey": ("studies", "train_prey"),
    "reproduce": ("reproducing", "reproduce"),
    "status": ("reproducing", "status"),
    "report": ("reproducing", "report"),
    "doctor": ("studies", "doctor"),
}
"""Module of `naht.commands` and function of each command."""

USAGE = f"""usage: naht COMMAND ...

N-agent ad hoc teamwork (version {__version__}): train agents that cooperate with teammates nobody chose.

{chr(10).join(f"  {name:<12} {summary}" for name, summary in COMMANDS.items())}

naht COMMAND --help explains each."""


def _dispatch(args: Sequence[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
    elif args[0] == "--version":
        print(__version__)
    elif args[0] not in COMMANDS:
        raise unknown("command", args[0], COMMANDS)
    else:
        configure()
        module, function = HOMES[args[0]]
        getattr(import_module(f"naht.commands.{module}"), function)(args[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit codes: 0 done, 2 a mistake in the call, 130 or 143 stopped by a signal and saved."""
    try:
        _dispatch(sys.argv[1:] if argv is None else argv)
    except NahtError as e:
        print(f"naht: {e}", file=sys.stderr)
        return 2
    except Interrupted as e:
        print(f"naht: {e}", file=sys.stderr)
        return 128 + e.signal_number
    except BrokenPipeError:  # the reader of a pipe, head say, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter flushes it at exit)
        return 0
    except OSError as e:  # a disk that is full, say, at a moment when nobody else knew what to do about it
        print(f"naht: {e.strerror or e}{f': {e.filename}' if e.filename else ''}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("naht: interrupted", file=sys.stderr)
        return 130
    except SystemExit as e:  # from --help
        return e.code if isinstance(e.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
