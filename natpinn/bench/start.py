"""How long natpinn takes to start: imports, help, first steps, and a problem that is changed.

Everything is timed in processes of its own. Compiled programs are kept in a folder that is empty
at first and removed at the end, so that a start is cold once, and warm from then on. Matplotlib's
list of fonts, which it makes once on a machine, is made before.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError

IMPORT_JAX = ("-c", "import jax, equinox, optax")
IMPORT_NATPINN = ("-c", "import natpinn")
IMPORT_ALL = ("-c", "from natpinn import *")  # loads what every name of the root needs
HELP = ("-m", "natpinn", "--help")
FONTS = ("-c", "import matplotlib.font_manager")
FIRST_STEPS = ("-m", "natpinn.bench.first_steps")


def time_start(problems: Sequence[str], repeats: int = 3) -> dict[str, Any]:
    """Seconds of everything that a user waits for before steps are taken.

    Imports, help and warm starts are medians of so many repeats. A cold start is one.
    """
    plain = {"import jax, equinox, optax": IMPORT_JAX, "import natpinn": IMPORT_NATPINN}
    plain |= {"from natpinn import *": IMPORT_ALL, "natpinn --help": HELP}
    with tempfile.TemporaryDirectory(prefix="natpinn-start-") as folder:
        cache = Path(folder, "plain")
        _output(FONTS, cache)
        return {
            "process": {
                name: statistics.median(_seconds(command, cache) for _ in range(repeats))
                for name, command in plain.items()
            },
            "solve": {name: _solved(name, folder, repeats) for name in problems},
            "first_step": {name: _first_step(name, folder, repeats) for name in problems},
            "again": json.loads(_output((*FIRST_STEPS, "again"), Path(folder, "again"))),
        }


def _solved(problem: str, folder: str, repeats: int) -> dict[str, float]:
    """The command natpinn solve … --steps 20 from its start to its end."""
    cache = Path(folder, f"solve-{problem}")

    def once(i: int) -> float:
        out = cache / f"run-{i}"
        command = ("-m", "natpinn", "solve", problem, "--steps", "20", "--out", str(out))
        return _seconds(command, cache)

    return {"cold": once(0), "warm": statistics.median(once(i + 1) for i in range(repeats))}


def _first_step(problem: str, folder: str, repeats: int) -> dict[str, float]:
    """From the start of a process to the first step of a problem."""
    cache = Path(folder, f"first-{problem}")

    def once() -> float:
        return json.loads(_output((*FIRST_STEPS, "catalogue", problem, str(time.time())), cache))

    return {"cold": once(), "warm": statistics.median(once() for _ in range(repeats))}


def _seconds(arguments: Sequence[str], cache: Path) -> float:
    started = time.perf_counter()
    _output(arguments, cache)
    return time.perf_counter() - started


def _output(arguments: Sequence[str], cache: Path) -> str:
    """What a process of Python prints; programs that it compiles are kept in `cache`."""
    environment = {k: v for k, v in os.environ.items() if k != "NATPINN_NO_CACHE"}
    fonts = cache.parent / "fonts"  # for all processes
    environment |= {"XDG_CACHE_HOME": str(cache), "MPLCONFIGDIR": str(fonts)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise InputError(f"{' '.join(arguments)} ended with {done.returncode}: {last}")
    return done.stdout
