"""Thousands of hostile folders, settings, studies and command lines, in one process. By hand.

    python tests/hostile.py                                10,000 cases of all kinds
    python tests/hostile.py --cases 500 --seed 3 --kinds folders studies
    python tests/hostile.py --seed 0 --kinds folders --case 417      one of them, with its output

Every case gets a folder of its own beside a folder that is not its own, to which hostile links lead
and in which nothing may change: inotify and a comparison tell. A case may do its work, or end with
one line that explains why not. It may not raise anything else, take long, show what it was not
asked for, start a process, open a connection or unpickle anything. What root starts runs as nobody,
where nobody may read Python. The exit code is 1 if any case did what it may not.
"""

import argparse
import contextlib
import copy
import ctypes
import faulthandler
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

LIMIT = 20.0  # seconds for a case
NOBODY = 65534
SECRET = "the secret of somebody else"
DONE, REFUSED, RAISED, HUNG, TOUCHED, SHOWN, FORBIDDEN = (
    "done", "refused", "raised", "hung", "touched", "shown", "forbidden"
)  # fmt: skip
WRONG = (RAISED, HUNG, TOUCHED, SHOWN, FORBIDDEN)
FORBIDDEN_EVENTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect",
    "socket.getaddrinfo", "pickle.find_class", "webbrowser.open", "urllib.Request",
)  # fmt: skip
ESCAPE = "\x1b]0;owned\x07\x1b[31m"
VALUES: list[Any] = [
    0, -1, 1, 2, 7, 10**12, 10**18, 10**40, -(10**40), 2**53, 2**63, 0.5, -0.0, 1e-320, 1e308,
    float("inf"), float("-inf"), float("nan"), True, False, "", " ", "none", "nan", "auto", "all",
    [], {}, [[]], [0], ["none"], [1, "a"], {"a": {"b": {}}}, {"schedule": "x"}, {"name": 3},
    {"schedule": "cosine_decay_schedule", "init_value": 0.1, "decay_steps": 5},
    {"schedule": "__import__", "init_value": "os"}, "os:system", "mine:problem", "a:b:c", ":",
    "../../outside/secret", "/etc/passwd", "~/x", "$(touch ran)", "; touch ran", "`touch ran`",
    "<script>alert(1)</script>", "a\\b", "a\nb", "\x7f", ESCAPE, "x" * 100_000, "名前", "%n%s{}",
    "wandb", ["wandb"], "9" * 5000, "[" * 2000, "poisson_2d", "spring", "tanh",
]  # fmt: skip
RAW = [
    "[" * 100_000, "{" * 100_000, "1" * 5000, "x = " + "1" * 5000, "x = " + "[" * 100_000, "\0",
    "= = =", "[[[", '"' * 99, "x" * 10**6, "[problem]\n" * 9, "NaN", "null", "[]", "{}", "5",
]  # fmt: skip


class HungError(BaseException):
    """A case took too long; no handler of ordinary errors catches it."""


class Watch:
    """What changes below a folder, as the kernel tells."""

    EVENTS = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800  # all but reading

    def __init__(self, root: Path):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._names: dict[int, Path] = {}
        for folder, _, _ in os.walk(root):
            watch = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), self.EVENTS)
            self._names[watch] = Path(folder)

    def changes(self) -> list[str]:
        found = []
        with contextlib.suppress(BlockingIOError):
            while content := os.read(self._fd, 2**16):
                at = 0
                while at < len(content):
                    watch, mask, _, size = struct.unpack_from("iIII", content, at)
                    name = content[at + 16 : at + 16 + size].rstrip(b"\0").decode(errors="replace")
                    found.append(f"{self._names.get(watch, '?')}/{name} ({mask:#x})")
                    at += 16 + size
        return found


class Place:
    """Where all happens: `work` for the cases, `outside` for what is not theirs, a home."""

    def __init__(self, root: Path):
        self.root = root
        self.outside, self.home, self.work = (root / n for n in ("outside", "home", "work"))
        self.bases = root / "bases"
        self.problem: Any = None
        for folder in (
            self.outside / "10",
            self.outside / "empty",
            self.home,
            self.work,
            self.bases,
        ):
            folder.mkdir(parents=True)
        for folder in (self.outside, self.outside / "10"):
            (folder / "secret").write_text(SECRET)
        (self.home / "tmp").mkdir()

    def become_nobody(self) -> str:
        """Give up the rights of root, so that nothing outside can be written to."""
        if os.geteuid() != 0:
            return f"as user {os.geteuid()}"
        needed = [Path(os.__file__), Path(sys.prefix), Path(__file__)]
        if not all(folder.stat().st_mode & 1 for path in needed for folder in path.parents):
            return "as root, since nobody may not read this Python"
        os.chmod(self.root, 0o755)
        for path in [self.root, *self.root.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return "as nobody"

    def state(self) -> list[tuple[str, int, int, int]]:
        """What is outside, and in the home's own folder."""
        found = []
        for path in sorted([*self.outside.rglob("*"), self.outside]):
            about = path.lstat()
            found.append((str(path), about.st_ino, about.st_size, about.st_mtime_ns))
        return found


class Auditor:
    """Notes what Python does that no case may do."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event.startswith(FORBIDDEN_EVENTS):
            self.seen.append(f"{event} {str(arguments)[:200]}")


# Hostile things


class Draw(random.Random):
    """Hostile choices."""

    def value(self) -> Any:
        if self.random() < 0.1:
            return [self.value() for _ in range(self.randint(0, 3))]
        if self.random() < 0.05:
            return {self.key(): self.value()}
        return copy.deepcopy(self.choice(VALUES))

    def key(self) -> str:
        keys = ["a", "", "name", "schedule", "x.y", "seed", "__class__", ESCAPE, "k" * 1000, "名"]
        return self.choice(keys)

    def changed(self, table: Any) -> Any:
        """A tree of tables and lists with a few entries changed."""
        if not isinstance(table, dict | list):
            return self.value()
        table = json.loads(json.dumps(table))
        for _ in range(self.choice([1, 1, 1, 2, 5])):
            places = list(_places(table))
            node, key = self.choice(places) if places else (table, None)
            kind = self.random()
            if key is None or kind < 0.1:
                if isinstance(node, dict):
                    node[self.key()] = self.value()
            elif kind < 0.2:
                del node[key]
            else:
                node[key] = self.value()
        return table

    def flipped(self, content: bytes) -> bytes:
        """Bytes with some of them changed, cut off, repeated or put in."""
        kind, at = self.random(), self.randrange(max(1, len(content)))
        if kind < 0.5:
            found = bytearray(content)
            for _ in range(self.choice([1, 1, 8, 64])):
                if found:
                    found[self.randrange(len(found))] ^= 1 << self.randrange(8)
            return bytes(found)
        if kind < 0.7:
            return content[:at]
        if kind < 0.85:
            return content[:at] + self.randbytes(self.choice([1, 8, 1000])) + content[at:]
        return self.choice(RAW).encode()

    def replaced(self, path: Path, place: Place) -> None:
        """Something that is no file in the place of one; or a file that is no sane one."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        names = ["", "secret", "new", "empty"]
        link = place.outside / self.choice(names)
        kinds: list[Callable[[], object]] = [
            lambda: path.symlink_to(link),
            lambda: path.symlink_to(link),
            lambda: path.symlink_to(path.name),
            lambda: path.symlink_to("/dev/zero"),
            lambda: os.mkfifo(path),
            lambda: path.mkdir(),
            lambda: (path.touch(), os.truncate(path, 10**12)),
            lambda: path.write_bytes(self.randbytes(100)),
            lambda: path.write_text(self.choice(RAW)),
            lambda: (path.touch(), path.chmod(0)),
            lambda: None,
        ]
        self.choice(kinds)()


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node))
    for key in keys:
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


def _toml(table: Any) -> bytes:
    """A table as TOML, or something like it where it is none."""
    import tomli_w

    try:
        return tomli_w.dumps(table).encode("utf-8", "surrogatepass")
    except Exception:
        return repr(table).encode("utf-8", "replace")


# What a case does


Case = Callable[[Draw, Path, Place], Callable[[], object]]


def command(*arguments: object) -> Callable[[], object]:
    """Run a command line as `natpinn` does, but let everything through that it should explain."""
    from natpinn.cli import main

    def run() -> object:
        words = ["natpinn", *(str(a).replace("\0", "") for a in arguments)]
        with mock.patch.object(sys, "argv", words):
            main()
        return None

    return run


def folders(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """A run folder with files changed, replaced or added."""
    run = _copied(
        place, draw.choice(["spring", "auto"]), folder / draw.choice(["run", "r n", "rún"])
    )
    for _ in range(draw.choice([1, 1, 2, 4])):
        kind = draw.random()
        name = draw.choice(["config.toml", "metrics.jsonl", "summary.json", "solution.png"])
        path = run / name
        is_plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 10**7
        if kind < 0.45 and is_plain and os.access(path, os.R_OK):
            _change(draw, path)
        elif kind < 0.6 and is_plain and os.access(path, os.R_OK):
            path.write_bytes(draw.flipped(path.read_bytes()))
        elif kind < 0.85:
            draw.replaced(run / draw.choice([name, "best", "checkpoint"]), place)
        else:
            added = draw.choice([f"{name}.part", "tensorboard", "wandb", "wandb.id", ".lock"])
            draw.replaced(run / added, place)
    return _use(draw, run)


def checkpoints(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """A run folder whose arrays are damaged, replaced, renamed or added to."""
    run = _copied(place, draw.choice(["spring", "auto"]), folder / "run")
    for _ in range(draw.choice([1, 1, 2, 8])):
        inside = [p for p in run.rglob("*") if p.parent != run and not p.is_symlink()]
        files = [p for p in inside if p.is_file() and os.access(p, os.R_OK)]
        files = [p for p in files if p.stat().st_size < 10**7]
        kind = draw.random()
        if kind < 0.5 and files:
            path = draw.choice(files)
            path.write_bytes(draw.flipped(path.read_bytes()))
        elif kind < 0.8 and inside:
            draw.replaced(draw.choice(inside), place)
        elif (run / "checkpoint").is_dir():
            names = [
                "0",
                "7",
                "007",
                "-1",
                "9" * 18,
                "9" * 40,
                "4.orbax-checkpoint-tmp-1",
                "x",
                "٣",
            ]
            path = run / "checkpoint" / draw.choice(names)
            if not os.path.lexists(path):
                path.mkdir()
                if draw.random() < 0.5:
                    path.rmdir()
                    path.symlink_to(place.outside / "10")
    return _use(draw, run, often_resumes=True)


def studies(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """The folder of a search with its files changed, replaced or added to."""
    study = _copied(place, "study", folder / "study")
    for _ in range(draw.choice([1, 1, 2])):
        kind = draw.random()
        path = study / draw.choice(["study.toml", "study.toml", "study.journal"])
        is_plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 10**7
        if kind < 0.5 and is_plain and path.suffix == ".toml" and os.access(path, os.R_OK):
            _change(draw, path)
        elif kind < 0.7 and is_plain and os.access(path, os.R_OK):
            path.write_bytes(draw.flipped(path.read_bytes()))
        else:
            names = [path.name, "best.toml", "trials", "trials/0000", "study.journal.lock", "x"]
            target = study / draw.choice(names)
            if target.parent.is_dir():
                draw.replaced(target, place)
    more = draw.choice([[], [], ["--storage", f"sqlite:///{place.outside}/secret"], ["--json"]])
    return command("tune", study, *more)


def configs(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """A file of settings."""
    path = folder / "settings.toml"
    base = place.bases / draw.choice(["spring", "auto"]) / "config.toml"
    if draw.random() < 0.2:
        path.write_bytes(draw.flipped(base.read_bytes()))
    else:
        path.write_bytes(_toml(draw.changed(tomllib.loads(base.read_text()))))
    if draw.random() < 0.05:
        draw.replaced(path, place)
    return command("solve", "--config", path, "--dry-run", "--out", folder / "run")


def experiments(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """A file of an experiment, and what its runs have left."""
    base = tomllib.loads((place.bases / "experiment.toml").read_text())
    path = folder / draw.choice(["experiment.toml", "e x.toml", f"{ESCAPE}.toml"])
    path.write_bytes(_toml(draw.changed(base)))
    if draw.random() < 0.1:
        draw.replaced(path, place)
    out = folder / "runs"
    run = out / path.stem / "spring-0"
    run.parent.mkdir(parents=True)
    if draw.random() < 0.5:
        _copied(place, "spring", run)
        draw.replaced(run / draw.choice(["config.toml", "summary.json", "metrics.jsonl"]), place)
    return command("experiment", "status", path, "--out", out)


def outputs(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """Reports and figures with outputs that are no files."""
    run = _copied(place, "spring", folder / draw.choice(["run", ESCAPE, "a\\b", "{}", "-o"]))
    target = folder / "target"
    draw.replaced(target, place)
    named = ["", "/", ".", "/dev/null", "/dev/full", "nowhere/x", "x" * 300, "~", target]
    choice = draw.choice([*named, target, target, target])
    leads_to_folder = target.is_symlink() and target.is_dir()  # which a user may well name
    kinds = [
        ("report", f"./{run.name}", "-o", choice),
        (
            "plot",
            f"./{run.name}",
            "-o",
            "figures" if leads_to_folder else choice,
            "--format",
            draw.choice(["png", "exe", "", "svg"]),
        ),
        ("report", f"./{run.name}", "--published", choice, "-o", "page.html"),
    ]
    return command(*draw.choice(kinds))


def commands(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """Command lines of words that are often right."""
    run = _copied(place, "spring", folder / "run")
    names = ["solve", "resume", "report", "plot", "tune", "experiment", "list", "bench", "", "x"]
    flags = ["--optimizer", "--steps", "--budget", "--stop-at", "--seed", "--devices", "--set"]
    flags += ["--memory-limit", "--track", "--tracker", "--config", "--out", "--json", "--x", "-o"]
    flags += ["--storage", "--space", "--trials", "--sampler", "--model", "--problem", "--format"]
    keys = ["model.widths", "points.interior", "optimizer.damping", "seed", "track.every", "x", ""]
    words: list[object] = [draw.choice(names), draw.choice(["poisson_2d", run, "x", ESCAPE, "a:b"])]
    for _ in range(draw.choice([0, 1, 2, 4])):
        flag = draw.choice(flags)
        value = draw.value()
        words += [flag, f"{draw.choice(keys)}={value}" if flag == "--set" else value]
    if words[0] == "solve":
        words += ["--dry-run"]
    if words[0] in ("tune", "bench"):  # which would begin to work
        words += ["--nonsense"]
    return command(*words)


def arguments(draw: Draw, folder: Path, place: Place) -> Callable[[], object]:
    """Python's own calls with values of other kinds."""
    import natpinn

    names = ["model", "optimizer", "points", "seed", "stop_at", "budget", "steps_per_batch"]
    names += ["devices", "memory_limit", "callbacks", "track", "checkpoint_seconds", "problem"]
    given = {name: draw.value() for name in draw.sample(names, draw.choice([1, 1, 2]))}
    problem = given.pop("problem", place.problem)
    options = {"steps": 1, "progress": False} | given
    return lambda: natpinn.solve(problem, **options)


KINDS: dict[str, tuple[Case, int]] = {  # and how many of a hundred cases are of a kind
    "folders": (folders, 25),
    "checkpoints": (checkpoints, 10),
    "studies": (studies, 10),
    "configs": (configs, 20),
    "experiments": (experiments, 5),
    "outputs": (outputs, 5),
    "commands": (commands, 15),
    "arguments": (arguments, 10),
}


def _use(draw: Draw, run: Path, often_resumes: bool = False) -> Callable[[], object]:
    import natpinn

    page = run.parent / "page.html"
    kinds = [
        command("report", run.parent, "-o", page),
        lambda: natpinn.load(run),
        command("plot", run, "-o", run.parent / "figures", "--format", "png"),
        command("solve", "poisson_2d", "--out", run, "--dry-run"),
        command("solve", "--config", run / "config.toml", "--dry-run"),
    ]
    resumes = [command("resume", run, "--steps", draw.choice([5, 6]))]
    return draw.choice(kinds + resumes * (5 if often_resumes else 2))


def _copied(place: Place, base: str, to: Path) -> Path:
    shutil.copytree(place.bases / base, to, dirs_exist_ok=True)
    return to


def _change(draw: Draw, path: Path) -> None:
    """Change the entries of a TOML or JSON file, as far as it is one."""
    text = path.read_bytes().decode("utf-8", "replace")
    try:
        if path.suffix == ".toml":
            path.write_bytes(_toml(draw.changed(tomllib.loads(text))))
        elif path.suffix == ".json":
            path.write_text(json.dumps(draw.changed(json.loads(text))))
        elif path.suffix == ".jsonl":
            lines = text.splitlines()
            at = draw.randrange(len(lines))
            lines[at] = json.dumps(draw.changed(json.loads(lines[at])))
            path.write_text("\n".join(lines) + draw.choice(["\n", ""]))
        else:
            path.write_bytes(draw.flipped(path.read_bytes()))
    except (ValueError, RecursionError, IndexError):
        path.write_bytes(draw.flipped(path.read_bytes()))


# How it is run


def prepare(place: Place) -> None:
    """Runs, a study and an experiment, as natpinn leaves them."""
    import natpinn

    sizes = {"interior": 20, "boundary": 8}
    plain = natpinn.problems.get("poisson_2d", points=sizes, widths=(4,))
    place.problem = plain.with_evaluation_points(20)
    small = ["points.interior=20", "points.boundary=8", "evaluation.points=20", "model.widths=[4]"]
    flags = [word for setting in small for word in ("--set", setting)]
    for name in ("spring", "auto"):
        out = place.bases / name
        command("solve", "poisson_2d", *flags, "--optimizer", name, "--steps", 4, "--out", out)()
    study = ["--trials", 1, "--refine", 0, "--steps", 2, "--out", place.bases / "study"]
    command("tune", "poisson_2d", *flags, *study)()
    table = {
        "title": "An experiment",
        "budget": 0.01,
        "seeds": [0],
        "settings": {"problem": {"name": "poisson_2d"}, "points": sizes},
        "methods": {"spring": {"optimizer": {"name": "spring", "damping": 1e-6}}},
        "search": {"spring": {"optimizer.momentum": {"uniform": [0, 0.9]}}},
    }
    (place.bases / "experiment.toml").write_bytes(_toml(table))
    command("report", place.bases, "-o", place.bases / "page.html")()
    command("plot", place.bases / "spring", "-o", place.bases / "figures")()
    natpinn.load(place.bases / "auto")


def judge(
    run: Callable[[], object], auditor: Auditor, watch: Watch, place: Place, is_shown: bool
) -> tuple[str, str]:
    """How a case ended, and what it did that it may not."""
    out, err, wrong, code = io.StringIO(), io.StringIO(), None, 0
    from natpinn import InputError

    before = place.state()
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    faulthandler.dump_traceback_later(3 * LIMIT, exit=True, file=2)
    auditor.seen, auditor.is_on = [], True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                run()
    except InputError:
        code = 2
    except SystemExit as stop:
        code = stop.code
    except HungError:
        wrong = (HUNG, f"more than {LIMIT:g} s")
    except BaseException as error:
        wrong = (RAISED, f"{type(error).__name__}: {str(error)[:300]}")
        if is_shown:
            import traceback

            traceback.print_exc()
    finally:
        auditor.is_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    text = out.getvalue() + err.getvalue()
    if is_shown:
        print(text[:5000])
    changes = watch.changes()
    if changes or place.state() != before:
        return TOUCHED, "; ".join(changes[:3])
    if wrong is not None:
        return wrong
    if auditor.seen:
        return FORBIDDEN, auditor.seen[0]
    if "\x1b" in text or SECRET in text or "Traceback" in text or "natpinn: unexpected " in text:
        return SHOWN, ascii(text[-300:])
    if code not in (0, 1, 2, 130):
        return RAISED, f"exit code {code}"
    return (DONE if code in (0, 130) else REFUSED), ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile cases, in one process.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--case", type=int, help="Only this one of its kind, with its output.")
    parser.add_argument("--minutes", type=float, default=30.0, help="All cases together.")
    given = parser.parse_args(argv)

    root = Path(tempfile.mkdtemp(prefix="natpinn-hostile-"))
    try:
        return _run(given, Place(root))
    finally:
        os.chdir("/")
        for folder, inside, _ in os.walk(root):
            for name in inside:
                with contextlib.suppress(OSError):
                    os.chmod(Path(folder, name), 0o700, follow_symlinks=False)
        shutil.rmtree(root, ignore_errors=True)


def _run(given: argparse.Namespace, place: Place) -> int:
    os.environ |= {
        "HOME": str(place.home),
        "XDG_CACHE_HOME": str(place.home / "cache"),
        "MPLCONFIGDIR": str(place.home / "matplotlib"),
        "TMPDIR": str(place.home / "tmp"),
        "NATPINN_DEBUG": "1",  # what is not explained is raised
        "JAX_PLATFORMS": "cpu",
    }
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import jax

    who = place.become_nobody()
    os.chdir(place.work)
    auditor = Auditor()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        prepare(place)
    watch = Watch(place.outside)

    def stop(*_: object) -> None:
        raise HungError

    signal.signal(signal.SIGALRM, stop)
    began, counts, told = time.monotonic(), {kind: Counter() for kind in given.kinds}, 0
    total = sum(KINDS[kind][1] for kind in given.kinds)
    for kind in given.kinds:
        case, share = KINDS[kind]
        for number in range(round(given.cases * share / total)):
            if given.case is not None and number != given.case:
                continue
            if time.monotonic() - began > 60 * given.minutes:
                print(f"stopped after {given.minutes:g} minutes")
                return 1
            folder = place.work / f"{kind}-{number}"
            folder.mkdir()
            os.chdir(folder)
            run = case(Draw(f"{given.seed} {kind} {number}"), folder, place)
            ended, why = judge(run, auditor, watch, place, given.case is not None)
            counts[kind][ended] += 1
            os.chdir(place.work)
            left = {path.name for path in place.work.iterdir()}
            if left != {folder.name} and ended not in WRONG:
                counts[kind][ended] -= 1
                counts[kind][TOUCHED] += 1
                ended, why = TOUCHED, f"left {sorted(left - {folder.name})[:3]}"
            if ended in WRONG:
                told += 1
                print(
                    f"--seed {given.seed} --kinds {kind} --case {number}: {ended}: {why}",
                    flush=True,
                )
            for path in place.work.iterdir():
                is_folder = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink()
            if number % 500 == 499:
                jax.clear_caches()
    _print(counts, f"{time.monotonic() - began:.0f} s, {who}, Linux {os.uname().release}")
    return 1 if told else 0


def _print(counts: dict[str, Counter[str]], about: str) -> None:
    columns = (DONE, REFUSED, *WRONG)
    print(f"{'':12}" + "".join(f"{name:>10}" for name in ("cases", *columns)))
    for kind, count in counts.items():
        numbers = (sum(count.values()), *(count[name] for name in columns))
        print(f"{kind:12}" + "".join(f"{n:10,}" for n in numbers))
    sums = [sum(count[name] for count in counts.values()) for name in columns]
    print(f"{'all':12}" + "".join(f"{n:10,}" for n in (sum(sums), *sums)))
    print(about)


if __name__ == "__main__":
    sys.exit(main())
