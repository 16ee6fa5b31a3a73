"""A run folder may be anyone's: whatever is in it touches nothing else, and is explained."""

import io
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

import natpinn
from natpinn import InputError, NatpinnWarning
from natpinn.cli import main
from natpinn.files import create_text, read_text, replace_text
from natpinn.models.theta import as_model, numbers
from natpinn.runs import checkpoint, trackers
from natpinn.runs.checkpoint import Checkpoints, DamagedError, latest, steps, write

SIZES = {"interior": 20, "boundary": 8}
SECRET = "not yours"


def problem():
    return natpinn.problems.get("poisson_2d", points=SIZES, widths=(4,)).with_evaluation_points(50)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    plain = natpinn.problems.get("poisson_2d", points=SIZES, widths=(4,))
    natpinn.solve(plain, optimizer="spring", steps=4, out=folder, progress=False)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside"
    path.write_text(SECRET)
    return path


def resume(folder, steps=8, **options):
    return natpinn.resume(folder, steps=steps, progress=False, **options)


def run_command(*arguments, **options):
    command = [sys.executable, "-m", "natpinn", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, text=True, timeout=120, **pipes)


# What is written


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.toml", "summary.json"])
def test_a_link_with_the_name_of_a_temporary_file_is_not_followed(folder, outside, name):
    (folder / f"{name}.part").symlink_to(outside)
    resume(folder)
    assert outside.read_text() == SECRET


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "config.toml", "summary.json", "solution.png", "best", "checkpoint"]
)
def test_a_link_in_place_of_what_a_run_writes_is_refused(folder, outside, tmp_path, name):
    target = outside
    if (folder / name).is_dir():
        shutil.copytree(folder / name, target := tmp_path / "elsewhere")
        shutil.rmtree(folder / name)
    else:
        target.write_bytes((folder / name).read_bytes())
        (folder / name).unlink()
    before = contents(target)
    (folder / name).symlink_to(target)
    with pytest.raises(InputError, match=rf"{name} is a link, and has to be"):
        resume(folder)
    assert contents(target) == before


def contents(path):
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def test_the_run_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert resume(tmp_path / "link").summary["steps"] == 8
    assert natpinn.load(folder).summary["steps"] == 8


def test_temporary_names_cannot_be_foreseen_and_are_gone_afterwards(tmp_path, monkeypatch):
    opened, honest = [], os.open

    def watch(path, flags, *more):
        opened.append((str(path), flags))
        return honest(path, flags, *more)

    monkeypatch.setattr(os, "open", watch)
    for _ in range(2):
        replace_text(tmp_path / "file", "text")
    partial = [(path, flags) for path, flags in opened if path.endswith(".part")]
    assert len({path for path, _ in partial}) == 2
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in partial)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_link_to_checkpoints_points_to_is_not_removed(folder, tmp_path):
    theirs = tmp_path / "theirs"
    for step in (1, 2, 3, 4, 5):
        (theirs / str(step)).mkdir(parents=True)
        (theirs / str(step) / "thesis").write_text(SECRET)
    shutil.rmtree(folder / "checkpoint")
    (folder / "checkpoint").symlink_to(theirs)
    with pytest.raises(InputError, match="is a link"):
        resume(folder)
    checkpoints = Checkpoints(folder / "checkpoint")
    checkpoints.finish()
    checkpoint.remove_all(folder / "checkpoint")
    assert len(list(theirs.rglob("thesis"))) == 5


def test_folders_that_natpinn_did_not_write_are_not_removed(tmp_path):
    for name in ("1", "2", "7", "007", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis").write_text(SECRET)
    (tmp_path / "4").symlink_to(tmp_path / "notes")
    checkpoints = Checkpoints(tmp_path)
    for step in (10, 11, 12):
        checkpoints.start(step, {"a": np.zeros(2)})
    checkpoints.finish()
    checkpoint.remove_all(tmp_path)
    assert len(list(tmp_path.rglob("thesis"))) == 5
    assert (tmp_path / "4").is_symlink()
    assert not any((tmp_path / str(step)).exists() for step in (10, 11, 12))


# What is read


def test_a_checkpoint_that_declares_gigabytes_is_refused_before_it_is_read(tmp_path):
    wanted = {"a": np.zeros((3, 4))}
    write(tmp_path / "1", wanted)
    big = io.BytesIO()
    with zipfile.ZipFile(big, "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }" % 10**11
        header += b" " * (118 - len(header) - 1) + b"\n"
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    stored = {checkpoint.CONTENT: np.frombuffer(big.getvalue(), np.uint8)}
    rewrite(tmp_path / "2", stored)
    with LimitedMemory(4 * 10**9), pytest.raises(InputError, match="does not fit the model"):
        checkpoint.read(tmp_path / "2", wanted)
    bomb = {checkpoint.CONTENT: np.zeros(10**9, np.uint8)}  # a few kB on disk
    rewrite(tmp_path / "3", bomb)
    assert sum(p.stat().st_size for p in (tmp_path / "3").rglob("*") if p.is_file()) < 10**6
    del bomb
    with pytest.raises(InputError, match="bytes are stored"):
        checkpoint.read(tmp_path / "3", wanted)


def rewrite(path, stored):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), stored)


class LimitedMemory:
    """Inside `with`, the address space of this process may grow by so many bytes."""

    def __init__(self, more):
        self.more = more

    def __enter__(self):
        import resource

        self.before = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + self.more, self.before[1]))

    def __exit__(self, *_):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, self.before)


def test_a_member_that_is_no_array_falls_back_to_the_checkpoint_before(tmp_path):
    wanted = {"a": np.arange(3.0)}
    write(tmp_path / "1", wanted)
    bad = io.BytesIO()
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00\x05\x00(((((")
    rewrite(tmp_path / "2", {checkpoint.CONTENT: np.frombuffer(bad.getvalue(), np.uint8)})
    with pytest.warns(NatpinnWarning, match="2 is damaged.*going on from the checkpoint before"):
        found = latest(tmp_path, wanted)
    assert found is not None
    np.testing.assert_array_equal(found["a"], wanted["a"])
    assert steps(tmp_path) == [1]


def test_a_link_inside_a_checkpoint_is_damage(tmp_path, outside):
    write(tmp_path / "1", {"a": np.zeros(3)})
    inner = next(p for p in (tmp_path / "1").rglob("*") if p.is_file() and p.name[0] != "_")
    inner.unlink()
    inner.symlink_to(outside)
    with pytest.raises(DamagedError, match="is a link"):
        checkpoint.read(tmp_path / "1", {"a": np.zeros(3)})


def test_a_checkpoint_of_a_terabyte_is_damage(tmp_path):
    for step in (1, 2):
        write(tmp_path / str(step), {"a": np.arange(3.0)})
    for path in (tmp_path / "2").rglob("*"):
        if path.is_file():
            os.truncate(path, 10**12)  # takes no room
    with pytest.warns(NatpinnWarning, match=r"its files have .* bytes"):
        latest(tmp_path, {"a": np.zeros(3)})


def fifo(path):
    os.mkfifo(path)


def bound_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        before = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            one.bind(path.name)
        finally:
            os.chdir(before)


def endless(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(10**12)


@pytest.mark.parametrize("make", [fifo, bound_socket, Path.mkdir, endless, large])
@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json"])
def test_only_files_of_a_sane_size_are_read(folder, name, make):
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(InputError):
        natpinn.load(folder)
    with pytest.raises(InputError):
        resume(folder)
    with pytest.raises(OSError, match=r"it is a |bytes|No such device"):
        read_text(folder / name)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json"])
def test_a_link_to_a_whole_file_is_not_read(folder, tmp_path, name):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(InputError, match=f"{name} cannot be read"):
        natpinn.load(folder)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": "5", "seconds": 1.0, "loss": 1.0}',
        '{"step": 5, "seconds": [1.0], "loss": 1.0}',
        '{"step": 5, "seconds": 1.0, "loss": {}}',
        '{"step": true, "seconds": 1.0}',
        '{"step": 1' + "0" * 400 + ', "seconds": 1.0}',
        '{"step": Infinity, "seconds": 1.0}',
        '{"step": -5, "seconds": 1.0}',
        '{"step": 5}',
        "[" * 100_000,
        "5",
        "null",
    ],
)
def test_records_of_the_wrong_type_are_told_before_training(folder, line, monkeypatch):
    metrics = folder / "metrics.jsonl"
    metrics.write_text(line + "\n" + metrics.read_text())
    monkeypatch.setattr("natpinn.runs.run.train", None)  # is not reached
    with pytest.raises(InputError, match=r"line 1 of .* cannot be read"):
        resume(folder)


def test_parameters_that_are_not_finite_are_told(folder):
    bad = numbers(as_model(natpinn.load(folder).model))
    shutil.rmtree(folder / "best")
    write(folder / "best", jax.tree.map(lambda leaf: leaf * np.nan, bad))
    with pytest.warns(NatpinnWarning, match="are not all finite"):
        natpinn.load(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poisson_5d", "heat_4d", "log_fokker_planck_9d"])
def test_a_dimension_that_cannot_fit_is_refused_before_anything_is_built(name):
    done = run_command(
        "solve", name, "--set", "problem.dimension=100000", "--steps", 2, "--memory-limit", "2GB"
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    told = ("would take", "a step needs more than", "are in use before training starts")
    assert any(words in done.stderr for words in told), done.stderr


# What is said


def test_a_name_that_is_not_utf_8_is_refused_at_the_start(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff")
    with pytest.raises(InputError, match="is not UTF-8"):
        natpinn.solve(problem(), steps=2, out=name, progress=False)
    assert not os.path.lexists(name)


def test_the_rescue_folder_has_a_name_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = "x" * 255

    def block(progress):
        if progress.step == 2:
            shutil.rmtree(tmp_path / name)
            (tmp_path / name).write_text("theirs")

    with pytest.warns(NatpinnWarning) as caught:
        solution = natpinn.solve(
            problem(), optimizer="adam", steps=4, out=tmp_path / name, callbacks=[block],
            progress=False,
        )  # fmt: skip
    assert "the run is saved to" in str(caught[-1].message)
    assert solution.folder is not None
    assert solution.folder.name.startswith("natpinn-run-")
    assert (tmp_path / name).read_text() == "theirs"


ESCAPE = "\x1b]0;owned\x07\x1b[31m"


@pytest.mark.slow
def test_terminal_escapes_of_a_folder_do_not_reach_the_terminal(folder):
    config = folder / "config.toml"
    text = config.read_text()
    hostile = json.dumps("mine:x; rm -rf $HOME " + ESCAPE)
    config.write_text(text.replace('name = "poisson_2d"', f"name = {hostile}", 1))
    for arguments in (["resume", folder], ["report", folder, "-o", folder.parent / "r.html"]):
        done = run_command(*arguments)
        assert "\x1b" not in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
    done = run_command("resume", folder)
    assert "--problem 'mine:x; rm -rf $HOME" in done.stderr
    named = folder.rename(folder.parent / f"run{ESCAPE}")
    config = named / "config.toml"
    config.write_text(text)
    done = run_command("resume", named, "--steps", 6)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr + done.stdout


# Who is contacted


def test_a_tracker_elsewhere_is_contacted_only_if_the_user_says_so(folder, tmp_path, monkeypatch):
    calls = []

    class Told:
        def __init__(self, folder, config, step):
            calls.append(folder)

        def log(self, record): ...

        def finish(self, summary): ...

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Told)
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("trackers = []", 'trackers = ["wandb"]'))
    shutil.copytree(folder, second := tmp_path / "second")
    shutil.copytree(folder, third := tmp_path / "third")
    with pytest.warns(NatpinnWarning, match=r"does not contact .* say --tracker wandb"):
        resume(folder)
    assert not calls
    resume(second, trackers=["wandb"])
    assert len(calls) == 1
    assert "wandb" in (second / "config.toml").read_text()
    done = run_command("solve", "--config", third / "config.toml", "--dry-run")
    assert "does not contact because a file names it" in done.stderr
    assert done.returncode == 2
    monkeypatch.setenv(trackers.ENVIRONMENT, "wandb")
    resume(third)
    assert len(calls) == 2
    assert run_command("solve", "--config", third / "config.toml", "--dry-run").returncode == 0


# Odd surroundings


def small_run(folder, *more):
    sizes = ["points.interior=20", "points.boundary=8", "evaluation.points=50", "model.widths=[4]"]
    flags = [word for size in sizes for word in ("--set", size)]
    return ["solve", "poisson_2d", *flags, "--steps", "3", "--out", str(folder), *more]


def test_without_stderr_progress_is_nowhere_else(tmp_path):
    command = [sys.executable, "-m", "natpinn", *small_run(tmp_path / "run", "--json")]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    done = subprocess.run(closed, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0
    assert json.loads(done.stdout)["steps"] == 3
    assert natpinn.load(tmp_path / "run").summary["steps"] == 3


@pytest.mark.slow
def test_neither_home_nor_cache_nor_utf_8_is_needed(tmp_path):
    known = {key: os.environ[key] for key in ("PATH", "JAX_PLATFORMS") if key in os.environ}
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for number, more in enumerate(({}, {"XDG_CACHE_HOME": "", "HOME": str(tmp_path)}, ascii_only)):
        folder = tmp_path / str(number)
        done = run_command(*small_run(folder), env=known | more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = run_command("report", "0", "1", "2", env=known | ascii_only, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Δu" not in done.stdout


@pytest.mark.slow
def test_a_ctrl_c_while_modules_are_imported_leaves_no_traceback(tmp_path):
    codes = []
    for delay in np.linspace(0.08, 1.6, 16):
        command = [sys.executable, "-m", "natpinn", *small_run(tmp_path / f"{delay:.3f}")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        codes.append(process.returncode)
        assert "Traceback" not in errors or delay < 0.15, (delay, errors)  # Python's own start
    assert set(codes) <= {-signal.SIGINT, 130, 0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 3}, "points are given by condition, as {'interior': …"),
        ({"callbacks": 3}, "callbacks are functions of a Progress in a list"),
        ({"callbacks": [3]}, "callbacks are functions of a Progress in a list"),
        ({"stop_at": np.inf}, "stop_at must be a positive error"),
        ({"steps": 10**40}, "too large"),
        ({"steps": 10**5000}, "too large"),
        ({"points": {"interior": 10**40}}, "too large"),
    ],
)
def test_arguments_of_other_kinds_are_explained(options, message):
    with pytest.raises(InputError) as raised:
        natpinn.solve("poisson_2d", **{"steps": 2, "progress": False, **options})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "setting",
    [
        "model.widths=''",
        "model.widths=12",
        "points.interior=" + "1" * 5000,
        "seed=" + "[" * 5000,
        "problem.name=['poisson_2d']",
        "optimizer.name=[1]",
        "optimizer.damping=" + "9" * 5000,
        "track.quantities=5",
        "model.widths=[" + "1" * 41 + "]",
    ],
)
def test_settings_of_other_kinds_are_explained(setting, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["natpinn", "solve", "poisson_2d", "--set", setting])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("natpinn: ")
    assert "unexpected" not in err
    assert len(err) < 2000
    assert not list(tmp_path.iterdir())


def test_who_may_read_a_file_stays_as_it_was(tmp_path):
    create_text(tmp_path / "secret", "x", is_private=True)
    replace_text(tmp_path / "secret", "y")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        create_text(tmp_path / "secret", "z")
    assert (tmp_path / "secret").read_text() == "y"


def test_a_pipe_of_the_shell_may_be_a_file_of_settings(whole, tmp_path):
    line = '"$0" -m natpinn solve --config <(cat "$1") --dry-run'
    command = ["bash", "-c", line, sys.executable, str(whole / "config.toml")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'name = "spring"' in done.stdout


def test_what_is_no_file_leaves_no_descriptor_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(OSError, match="is a folder"):
            read_text(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("key", ["model.name", "problem.name", "optimizer.name"])
def test_a_module_that_a_file_names_is_not_imported(whole, tmp_path, monkeypatch, key, capsys):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    for name in ("evil", "evil:", "evil.x", ":evil"):
        settings = {"problem.name": "poisson_2d", "optimizer.name": "spring", key: name}
        lines = [f"[{k.partition('.')[0]}]\nname = {json.dumps(v)}" for k, v in settings.items()]
        (tmp_path / "evil.toml").write_text("\n".join(lines))
        monkeypatch.setattr("sys.argv", ["natpinn", "solve", "--config", "evil.toml", "--dry-run"])
        with pytest.raises(SystemExit):
            main()
        assert not (tmp_path / "ran").exists()
        assert "natpinn: " in capsys.readouterr().err


def test_settings_of_weights_and_biases_in_a_folder_are_refused(folder):
    pytest.importorskip("wandb")
    (folder / "wandb").mkdir()
    (folder / "wandb" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:8765\n")
    with pytest.raises(InputError, match="is not of natpinn"):
        resume(folder, trackers=["wandb"])


def test_a_long_message_with_addresses_is_shown_at_once(folder, capsys, monkeypatch):
    summary = json.loads((folder / "summary.json").read_text())
    summary |= {"status": "diverged", "message": "://a:" * 400_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr("sys.argv", ["natpinn", "resume", str(folder)])
    began = time.process_time()
    with pytest.raises(SystemExit):
        main()
    assert len(capsys.readouterr().err) < 2000
    assert time.process_time() - began < 30  # it took an hour
