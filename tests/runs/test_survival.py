"""Runs that are killed, interrupted, damaged or out of disk lose nothing."""

import contextlib
import errno
import io
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import power
import pytest

import natpinn
import natpinn.training.signals
from natpinn import Box, Condition, InputError, NatpinnWarning, Problem, adam, laplacian, solve
from natpinn.cli import main
from natpinn.runs.checkpoint import Checkpoints, DamagedError, latest, named_arrays, steps, write
from natpinn.runs.folder import RunFolder
from natpinn.runs.records import read_history
from natpinn.runs.resolve import FORMAT
from natpinn.training.signals import Interrupts

KILLS = int(os.environ.get("NATPINN_KILLS", "3"))  # `make survive` wants more
TINY = ["--set", "points.interior=20", "--set", "points.boundary=8", "--set", "model.widths=[6]"]
TINY += ["--set", "evaluation.points=50", "--optimizer", "spring"]
SMALL = ["--set", "points.interior=120", "--set", "points.boundary=30"]
SMALL += ["--set", "model.widths=[16]", *TINY[-4:]]
SQUARE = Box.unit(2)


def tiny(solution=lambda x: x[0] * x[1]):
    return Problem(
        {
            "interior": Condition(lambda u, x: laplacian(u)(x), SQUARE, points=10),
            "boundary": Condition(lambda u, x: u(x) - x[0] * x[1], SQUARE.boundary, points=8),
        },
        solution=solution,
        widths=(4,),
    )


ALONE = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}  # one device, usual programs


def start(*arguments, environment=os.environ | ALONE):
    command = [sys.executable, "-m", "natpinn", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def wait_for_steps(processes):
    """Until one of them trains, or all have ended; returns what they have said until then."""
    said = {process.stderr: "" for process in processes}
    with selectors.DefaultSelector() as selector:
        for stream in said:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and not any("\nstep" in text for text in said.values()):
            for key, _ in selector.select():
                text = os.read(key.fd, 2**16).decode()
                said[key.fileobj] += text
                if not text:
                    selector.unregister(key.fileobj)
    for process in processes:
        process.said = said[process.stderr]
        os.set_blocking(process.stderr.fileno(), True)


def wait_for_a_write(processes, folder):
    """Until a checkpoint is being written."""
    while any(p.poll() is None for p in processes) and not any(folder.glob("*tmp*")):
        pass


def check_killed(processes):
    """Kill processes that share a folder; how many had been refused, since another one had it."""
    for process in processes:
        process.kill()
    refused = 0
    for process in processes:
        _, errors = process.communicate()
        errors = getattr(process, "said", "") + errors
        process.trained = "\nstep" in errors
        if process.returncode == 2:
            assert "in use by another process" in errors or "holds an interrupted run" in errors
            refused += 1
        elif process.returncode == 0:
            pytest.fail("the run ended before it was killed: make it longer")
        else:
            assert process.returncode == -signal.SIGKILL, errors
    assert refused < len(processes)
    assert sum(process.trained for process in processes) <= 1
    return refused


def stored_arrays(folder):
    """The arrays of the last checkpoint, read without natpinn."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore((folder / "checkpoint" / str(last_step(folder))).absolute())
    arrays = dict(np.load(io.BytesIO(np.asarray(found["npz"]).tobytes()), allow_pickle=False))
    timing = [f"snapshot.{kind}seconds" for kind in ("", "compile_", "tracking_")]
    return {name: array for name, array in arrays.items() if name not in timing}


def last_step(folder):
    return steps(folder / "checkpoint")[-1]


def untimed(folder):
    records = read_history(folder)
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    solve_it = ["solve", "poisson_2d", *SMALL, "--steps", 5_000 * KILLS]
    solve_it += ["--set", "checkpoint.every_seconds=0.01"]
    process = start(*solve_it, "--out", whole)
    _, errors = process.communicate()
    assert process.returncode == 0, errors

    draw, reached, in_writes, refused = random.Random(0), [], 0, 0
    for _ in range(KILLS):
        is_new = not (killed / "config.toml").exists()
        command = [*solve_it, "--out", killed] if is_new else ["resume", killed]
        processes = [start(*command) for _ in range(2)]  # of which one gets the folder
        moment = draw.random()
        if moment < 0.1:  # while they import, compile or open their folder
            time.sleep(draw.uniform(0, 3))
        else:
            wait_for_steps(processes)
            time.sleep(draw.uniform(0, 0.5))
        if moment > 0.5:
            wait_for_a_write(processes, killed / "checkpoint")
        refused += check_killed(processes)
        found = steps(killed / "checkpoint")
        reached.append(found[-1] if found else 0)
        in_writes += any((killed / "checkpoint").glob("*tmp*"))
    process = start(*(["resume", killed] if (killed / "config.toml").exists() else solve_it))
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    print(f"killed {KILLS} times, after the checkpoints of steps {reached}, of which {in_writes} "
          f"times inside the write of a checkpoint; {refused} times the second process had been "
          f"refused by then")  # fmt: skip

    assert_same_end(killed, whole)


LOSSES = int(os.environ.get("NATPINN_POWER_LOSSES", "8"))


@pytest.mark.slow
def test_a_run_that_loses_its_power_ends_as_if_it_had_not(tmp_path):
    library = power.build(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    root, log = tmp_path / "disk", tmp_path / "log"
    root.mkdir()
    solve_it = ["solve", "poisson_2d", *TINY, "--steps", 2000, "--out", root / "deep" / "run"]
    solve_it += ["--set", "checkpoint.every_seconds=0.01"]
    recorded = start(*solve_it, environment=power.environment(library, root, log))
    _, errors = recorded.communicate()
    assert recorded.returncode == 0, errors
    recorded_changes = list(power.changes(log))
    disk = power.Disk(root)
    for change in recorded_changes:
        disk.take(change)
    disk.write(tmp_path / "replayed")
    assert contents(tmp_path / "replayed") == contents(root)  # nothing was missed

    whole, draw = root / "deep" / "run", random.Random(0)
    inside = [i for i, c in enumerate(recorded_changes) if c.kind is power.Kind.WRITE]
    moments = [draw.choice(inside) for _ in range(LOSSES // 2)]
    moments += [draw.randrange(len(recorded_changes)) for _ in range(LOSSES - len(moments))]
    promised = first_promise(recorded_changes, root)
    disk, begun, ends = power.Disk(root), 0, Counter()
    for number, moment in enumerate(sorted(moments)):
        for change in recorded_changes[begun:moment]:
            disk.take(change)
        begun = moment
        disk.lose_power(tmp_path / str(number), draw)
        ends[resume_after(tmp_path / str(number) / "deep" / "run", whole, moment >= promised)] += 1
        shutil.rmtree(tmp_path / str(number))
    print(f"lost its power {LOSSES} times in {len(recorded_changes)} changes: {dict(ends)}")


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def first_promise(recorded, root):
    """After which change the first checkpoint is on the disk, with every file and every name."""
    disk, written = power.Disk(root), 0
    for number, change in enumerate(recorded):
        disk.take(change)
        if change.kind is power.Kind.SYNC:
            found = disk.find("deep", "run", "checkpoint")
            if any(name.isdigit() and power.is_synced(inner) for name, inner in found.items()):
                assert written <= 3  # not much later than the process believes
                return number + 1
        is_in_place = change.second.rpartition("/")[0].endswith("/run/checkpoint")
        written += change.kind is power.Kind.RENAME and is_in_place
    raise AssertionError("no checkpoint was ever on the disk")


def resume_after(folder, whole, is_promised):
    """Go on with what a disk has left of a run; whatever way, it ends as the whole one."""
    if not (folder / "config.toml").exists():
        assert not is_promised
        return "not begun"
    outcome = "resumed"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NatpinnWarning)
        if has_all_steps(folder, whole):
            outcome = "was finished"
            with pytest.raises(InputError, match="which is all that its limits allow"):
                natpinn.resume(folder, progress=False)
        else:
            natpinn.resume(folder, progress=False)
    if any("begins again" in str(warning.message) for warning in caught):
        assert not is_promised
        outcome = "began again"
    assert_same_end(folder, whole)
    return outcome


def has_all_steps(folder, whole):
    """Whether a run has ended, and the end is on the disk."""
    return (folder / "summary.json").exists() and last_step(folder) == last_step(whole)


def assert_same_end(folder, whole):
    assert untimed(folder) == untimed(whole)
    one, other = stored_arrays(whole), stored_arrays(folder)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name)
    x = SQUARE.sample(jax.random.key(0), 20)
    np.testing.assert_array_equal(natpinn.load(folder)(x), natpinn.load(whole)(x))


@pytest.mark.slow
def test_signals_stop_a_run_that_then_goes_on(tmp_path, capfd):
    folder = tmp_path / "run"
    process = start("solve", "poisson_2d", *TINY, "--budget", 60, "--out", folder)
    wait_for_steps([process])
    for use in (lambda: solve("poisson_2d", out=folder), lambda: natpinn.resume(folder)):
        with pytest.raises(InputError, match="in use by another process"):
            use()
    for _ in range(2):  # as `timeout` sends it: to the process, and to its group
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 130
    assert out.startswith("interrupted:")
    assert f"natpinn resume {folder}" in out
    stopped = json.loads((folder / "summary.json").read_text())
    assert stopped["status"] == "interrupted"
    assert stopped["steps"] == last_step(folder)
    with pytest.raises(InputError, match=r"interrupted run: go on with `natpinn resume"):
        solve("poisson_2d", out=folder)

    process = start("resume", folder)
    wait_for_steps([process])
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130
    again = json.loads((folder / "summary.json").read_text())
    assert again["steps"] > stopped["steps"]
    assert again["seconds"] > stopped["seconds"]

    more = again["steps"] + 5
    assert natpinn.resume(folder, steps=more, progress=False).summary["status"] == "finished"
    with pytest.raises(InputError, match="give a larger --budget or --steps"):
        natpinn.resume(folder)


def test_a_later_signal_stops_at_once(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        for _ in range(2):  # these are one
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        monkeypatch.setattr(natpinn.training.signals, "TOGETHER", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_during_training_is_an_interruption(tmp_path):
    def interrupt(progress):
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    solution = quick(steps=1000, callbacks=[interrupt], out=tmp_path / "run")
    assert solution.summary["status"] == "interrupted"
    assert 3 <= solution.summary["steps"] < 1000
    resumed = natpinn.resume(tmp_path / "run", tiny(), optimizer=adam(), steps=40, progress=False)
    assert resumed.summary["steps"] == 40
    straight = quick(steps=40)
    at = {r["step"]: r["l2"] for r in resumed.history}
    assert [at[r["step"]] for r in straight.history] == [r["l2"] for r in straight.history]


def quick(**options):
    return solve(tiny(), optimizer=adam(), progress=False, **options)


def tree(value):
    return {"a": jnp.full((3, 4), value), "key": jax.random.key(int(value)), "n": np.asarray(value)}


DAMAGES = {
    "flipped": lambda path, at: path.write_bytes(_flip(path.read_bytes(), at)),
    "truncated": lambda path, at: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "removed": lambda path, at: path.unlink(),
}


def _flip(content, at):
    i = int(at * len(content))
    return content[:i] + bytes([content[i] ^ (1 << int(at * 1e6) % 8)]) + content[i + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    checkpoints, draw = Checkpoints(tmp_path / "good"), random.Random(1)
    for step in (1, 2, 3):
        checkpoints.start(step, tree(float(step)))
    checkpoints.finish()
    assert steps(tmp_path / "good") == [2, 3]
    files = [p for p in sorted((tmp_path / "good" / "3").rglob("*")) if p.is_file()]
    fell_back = 0
    for file in files * 3 if damage == "flipped" else files:
        shutil.rmtree(tmp_path / "bad", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        DAMAGES[damage](tmp_path / "bad" / file.relative_to(tmp_path / "good"), draw.random())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NatpinnWarning)
            found = latest(tmp_path / "bad", tree(0.0))
        warned = [w for w in caught if issubclass(w.category, NatpinnWarning)]
        expected = tree(2.0 if warned else 3.0)  # what holds no values may be damaged unseen
        assert found is not None
        for name, array in named_arrays(expected).items():
            np.testing.assert_array_equal(named_arrays(found)[name], array)
        fell_back += bool(warned)
    assert fell_back >= len(files) // 3


def test_without_a_whole_checkpoint_the_error_is_clear(tmp_path):
    write(tmp_path / "5", tree(1.0))
    for path in (tmp_path / "5").rglob("d/*"):
        path.write_bytes(b"")
    with pytest.raises(DamagedError, match=r"is damaged.*no older checkpoint"):
        latest(tmp_path, tree(0.0))
    shutil.rmtree(tmp_path / "5")
    write(tmp_path / "6", {"a": np.zeros(3)})
    with pytest.raises(InputError, match="does not fit"):
        latest(tmp_path, {"a": np.zeros(4)})
    assert latest(tmp_path / "nowhere", tree(0.0)) is None


def test_a_torn_last_line_is_repaired(tmp_path):
    quick(steps=20, out=tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text()
    metrics.write_text(lines + '{"step": 21, "se')
    assert [r["step"] for r in natpinn.load(tmp_path / "run", problem=tiny()).history][-1] == 20
    natpinn.resume(tmp_path / "run", tiny(), optimizer=adam(), steps=40, progress=False)
    assert metrics.read_text().startswith(lines)
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()][-1] == 40
    metrics.write_text(lines.replace('"step"', "step", 1))
    with pytest.raises(InputError, match="line 1 of"):
        natpinn.load(tmp_path / "run", problem=tiny())


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 400 kB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(path)]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(mount, capture_output=True).returncode == 0:
            yield path
            subprocess.run(["umount", "-l", str(path)], check=True)
            return
    pytest.skip("mounting a file system is not allowed here")


def on_steps(actions):
    """A callback that does something at given steps, once each."""
    left = dict(actions)

    def act(progress):
        for step in [s for s in left if s <= progress.step]:
            left.pop(step)()

    return act


def test_a_full_disk_pauses_the_writing_and_not_the_training(small_disk):
    filler = small_disk / "filler"

    def fill():
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1024))

    with pytest.warns(NatpinnWarning) as caught:
        solution = quick(
            steps=400,
            out=small_disk / "run",
            checkpoint_seconds=1e-3,
            callbacks=[on_steps({20: fill, 300: filler.unlink})],
        )
    messages = [str(w.message) for w in caught]
    for what in ("metrics", "checkpoints"):  # one may work while what the other left is removed
        told = [m for m in messages if what in m]
        assert all("No space left on device; training goes on" in m for m in told[::2])
        assert all("works again" in m for m in told[1::2])
        assert len(told) in (2, 4, 6, 8, 10, 12), told
    assert solution.summary["status"] == "finished"
    assert solution.folder == small_disk / "run"
    steps_written = [r["step"] for r in read_history(small_disk / "run")]
    assert steps_written == [r["step"] for r in solution.history]
    assert last_step(small_disk / "run") == 400
    assert len(steps(small_disk / "run" / "checkpoint")) <= 2
    assert not list((small_disk / "run").rglob("*tmp*"))


def test_a_disk_that_stays_full_sends_the_results_elsewhere(small_disk, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fill():
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(256))

    with pytest.warns(NatpinnWarning) as caught:
        solution = quick(steps=60, out=small_disk / "run", callbacks=[on_steps({20: fill})])
    assert "the run is saved to" in str(caught[-1].message)
    assert solution.folder is not None
    assert solution.folder.parent == tmp_path
    assert natpinn.load(solution.folder, problem=tiny()).history == solution.history


def test_with_no_room_anywhere_the_solution_is_in_memory(tmp_path, monkeypatch):
    def refuse():
        def fail(path, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("natpinn.runs.folder.replace_text", fail)

    with pytest.warns(NatpinnWarning, match="the result is in memory only"):
        solution = quick(steps=20, out=tmp_path / "run", callbacks=[on_steps({15: refuse})])
    assert solution.folder is None
    assert solution.summary["steps"] == 20


def test_a_read_only_disk_is_refused_and_survived(small_disk):
    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", str(small_disk)], check=True)

    remount("ro")
    with pytest.raises(InputError, match=r"cannot write to .*Read-only file system"):
        quick(steps=5, out=small_disk / "run")
    remount("rw")
    with pytest.warns(NatpinnWarning) as caught:
        quick(
            steps=60,
            out=small_disk / "run",
            callbacks=[on_steps({10: lambda: remount("ro"), 50: lambda: remount("rw")})],
        )
    assert "Read-only file system; training goes on" in str(caught[0].message)
    assert read_history(small_disk / "run")[-1]["step"] == 60


def test_a_folder_that_is_removed_is_written_again(tmp_path):
    folder = tmp_path / "run"
    with pytest.warns(NatpinnWarning, match="was removed, and is written again"):
        solution = quick(
            steps=60, out=folder, callbacks=[on_steps({20: lambda: shutil.rmtree(folder)})]
        )
    assert natpinn.load(folder, problem=tiny()).history == solution.history
    assert last_step(folder) == 60


def test_two_processes_cannot_write_one_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for is_new in (True, False):
        with pytest.raises(InputError, match="in use by another process"):
            RunFolder(tmp_path / "run", is_new)
    folder.close()
    RunFolder(tmp_path / "run").close()


def test_a_folder_that_others_took_is_left_to_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, others = tmp_path / "run", tmp_path / "run" / "config.toml"

    def take():
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        others.write_text("theirs")

    with pytest.warns(NatpinnWarning) as caught:
        solution = quick(steps=60, out=folder, callbacks=[on_steps({20: take})])
    assert "no longer the folder" in str(caught[0].message)
    assert others.read_text() == "theirs"
    assert [p.name for p in folder.iterdir()] == ["config.toml"]
    assert solution.folder != folder
    assert solution.folder is not None
    assert read_history(solution.folder)[-1]["step"] == 60


@pytest.mark.slow
def test_the_last_checkpoint_is_whole_though_another_is_being_written(tmp_path):
    wide = Problem(tiny().conditions, tiny().solution, widths=(500, 500))
    for name in "abc":
        solve(
            wide, optimizer=adam(), steps=3, out=tmp_path / name, checkpoint_seconds=1e-6,
            progress=False,
        )  # fmt: skip
        assert natpinn.resume(tmp_path / name, wide, optimizer=adam(), steps=4, progress=False)


def again(folder, **options):
    return natpinn.resume(folder, tiny(), optimizer=adam(), progress=False, **options)


def test_a_damaged_checkpoint_is_replaced_when_it_is_reached_again(tmp_path):
    quick(steps=30, out=tmp_path / "run")
    again(tmp_path / "run", steps=60)
    for path in (tmp_path / "run" / "checkpoint" / "60").rglob("d/*"):
        path.write_bytes(b"")
    with pytest.warns(NatpinnWarning, match="going on from the checkpoint before"):
        again(tmp_path / "run", steps=60)
    again(tmp_path / "run", steps=70)
    assert steps(tmp_path / "run" / "checkpoint") == [60, 70]
    recorded = [record["step"] for record in read_history(tmp_path / "run")]
    assert recorded == sorted(set(recorded))  # those after the checkpoint were taken again


def test_a_run_without_checkpoints_begins_again_only_if_it_never_ended(tmp_path):
    folder = tmp_path / "run"
    straight = quick(steps=50, out=folder)
    shutil.rmtree(folder / "checkpoint")
    with pytest.raises(InputError, match="no checkpoint to go on from"):
        again(folder, steps=60)
    (folder / "summary.json").unlink()
    with pytest.raises(InputError, match=r"no summary yet.*natpinn resume"):
        natpinn.load(folder, problem=tiny())
    with pytest.warns(NatpinnWarning, match="begins again"):
        resumed = again(folder)
    assert resumed.history[-1]["loss"] == straight.history[-1]["loss"]


def test_a_run_that_was_killed_while_writing_its_results_gets_them(tmp_path):
    straight = quick(steps=47, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "run" / "best")
    resumed = again(tmp_path / "run")
    assert resumed.summary["best_l2"] == straight.summary["best_l2"]
    x = SQUARE.sample(jax.random.key(0), 9)
    np.testing.assert_array_equal(natpinn.load(tmp_path / "run", problem=tiny())(x), straight(x))


def test_where_a_run_was_stopped_does_not_show(tmp_path):
    straight = quick(steps=120, out=tmp_path / "straight")
    stopped = quick(steps=97, out=tmp_path / "stopped")
    assert stopped.history[-1]["step"] == 97  # off the schedule of evaluations
    again(tmp_path / "stopped", steps=120)
    assert untimed(tmp_path / "stopped") == untimed(tmp_path / "straight")
    one, other = stored_arrays(tmp_path / "straight"), stored_arrays(tmp_path / "stopped")
    for name, array in one.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name)
    errors = [record["l2"] for record in straight.history]
    assert straight.summary["best_l2"] == min(errors)


def test_a_problem_that_was_changed_is_not_taken_for_the_one_of_the_catalogue(tmp_path):
    sizes = {"interior": 10, "boundary": 5}
    plain = natpinn.problems.get("poisson_2d", points=sizes, widths=(4,))
    changed = plain.with_sampler(natpinn.Sobol())
    for name, problem in (("plain", plain), ("changed", changed)):
        solve(problem, optimizer="adam", steps=5, out=tmp_path / name, progress=False)
    natpinn.resume(tmp_path / "plain", steps=9, progress=False)
    with pytest.raises(InputError, match="code of your own"):
        natpinn.resume(tmp_path / "changed", steps=9)
    natpinn.resume(tmp_path / "changed", changed, steps=9, progress=False)


def test_another_optimizer_on_resuming_is_told_and_recorded(tmp_path):
    quick(steps=5, out=tmp_path / "run")
    with pytest.warns(NatpinnWarning, match="another optimizer"):
        natpinn.resume(tmp_path / "run", tiny(), optimizer=adam(0.5), steps=9, progress=False)
    assert "0.5" in (tmp_path / "run" / "config.toml").read_text()


def test_new_limits_replace_a_target_that_was_reached(tmp_path):
    first = quick(steps=2000, stop_at=10.0, out=tmp_path / "run")
    assert first.summary["steps"] < 10
    assert again(tmp_path / "run", steps=40).summary["steps"] == 40


def test_a_stream_that_cannot_be_written_does_not_end_a_run(tmp_path):
    command = [sys.executable, "-m", "natpinn", "solve", "poisson_2d", *TINY, "--steps", "30"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*command, "--out", str(tmp_path / "run")], stderr=full)
    assert ended.returncode == 0
    assert last_step(tmp_path / "run") == 30


def test_running_out_of_memory_names_the_plan_and_the_flag(monkeypatch):
    def fail(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")

    monkeypatch.setattr("natpinn.runs.run.train", fail)
    sizes = {"interior": 300, "boundary": 10}
    with pytest.raises(InputError, match=r"out of memory.*whole.*--memory-limit [0-9]+MB"):
        solve("poisson_5d", optimizer="spring", points=sizes, steps=5, progress=False)


@pytest.mark.parametrize(("number", "remedy"), [(1, "start the run again"), (99, "a newer one")])
def test_other_formats_are_refused(tmp_path, number, remedy):
    quick(steps=5, out=tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(f"format = {FORMAT}", f"format = {number}"))
    for use in (natpinn.load, natpinn.resume):
        with pytest.raises(InputError, match=f"written in format {number}.*{remedy}"):
            use(tmp_path / "run")


def test_code_is_run_because_the_user_names_it_and_not_because_a_file_does(tmp_path, monkeypatch):

    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nPath('ran').touch()\nfrom natpinn import *\n"
        "problem = Problem({'ode': Condition(lambda u, t: partial(u, 0)(t) + u(t), Box([0], [1]),"
        " points=20)}, widths=(4,))\ndef net(key):\n    return MLP(1, (3,), key=key)\n"
    )
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["natpinn", *arguments])
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        (tmp_path / "ran").unlink(missing_ok=True)
        try:
            main()
        except SystemExit as stop:
            return stop.code
        return 0

    own = ["--problem", "mine:problem", "--model", "mine:net"]
    solve_it = ["solve", "mine:problem", "--set", "model.name=mine:net", "--steps", "4"]
    assert run(*solve_it, "--out", "run") == 0
    for refused in (
        ["resume", "run", "--steps", "8"],
        ["resume", "run", "--steps", "8", *own[:2]],
        ["solve", "--config", "run/config.toml"],
    ):
        assert run(*refused) == 2
        assert (tmp_path / "ran").exists() == ("mine:problem" in refused)
    assert run("resume", "run", "--steps", "8", *own) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 8
    again = ["solve", "mine:problem", "--config", "run/config.toml", "--out", "again"]
    assert run(*again, "--set", "model.name=mine:net") == 0
