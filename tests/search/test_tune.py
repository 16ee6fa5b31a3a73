"""Searches find better settings, survive their workers, and compile once."""

import json
import math
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import natpinn
import natpinn.search.study
import natpinn.search.tuning
from natpinn import InputError
from natpinn.runs.names import OPTIMIZERS
from natpinn.runs.parts import assemble
from natpinn.runs.records import read_history
from natpinn.runs.resolve import resolve
from natpinn.runs.run import run
from natpinn.runs.settings import read_file
from natpinn.search.spaces import Choice, Range, parse_table, parse_text, wide
from natpinn.search.study import Search, Study, Task
from natpinn.search.tuning import (
    BEST,
    final_error,
    join,
    open_study,
    plan_search,
    read_study,
    tune,
    work,
)

SMALL = {"points.interior": 30, "points.boundary": 12, "evaluation.points": 200}
SMALL |= {"model.widths": [10, 10], "sampling.points": "uniform"}
SPACE = {"optimizer": {"damping": {"log_uniform": [1e-10, 1e-2]}}}
FLAGS = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]


def command(folder, *options):
    start = [sys.executable, "-m", "natpinn", "tune", "poisson_2d", "--optimizer", "spring"]
    return [*start, *FLAGS, "--out", str(folder), *options]


def take(study: Study) -> Task:
    task = study.take()
    assert task is not None
    return task


def test_ranges_are_drawn_from_and_narrowed_inside_themselves():
    random = np.random.default_rng(0)
    log = Range(1e-8, 1.0, is_log=True)
    drawn = np.array([log.draw(random) for _ in range(2000)])
    assert drawn.min() >= 1e-8
    assert drawn.max() <= 1.0
    assert abs(np.median(np.log10(drawn)) + 4) < 0.3  # half of them below 1e-4
    for best in (1e-8, 3e-5, 1.0):
        narrow = log.narrowed(best)
        assert log.low <= narrow.low <= best * (1 + 1e-12)
        assert best <= narrow.high * (1 + 1e-12)
        assert np.log(narrow.high / narrow.low) == pytest.approx(np.log(1e8) / 4)
    assert Choice((1, 2)).narrowed(1) == Choice((1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.damping", "KEY=KIND:VALUE:VALUE"),
        ("optimizer.damping=lognormal:1:2", "did you mean 'log_uniform'"),
        ("optimizer.damping=uniform:1", "two ends"),
        ("optimizer.damping=uniform:2:1", "smaller to a larger"),
        ("optimizer.damping=log_uniform:0:1", "above zero"),
        ("optimizer.damping=uniform:a:b", "are numbers"),
    ],
)
def test_wrong_ranges_are_explained(text, message):
    with pytest.raises(InputError, match=message):
        parse_text(text)


def test_ranges_are_read_from_text_and_tables():
    assert parse_text("optimizer.rank=choice:0.1:auto:true") == (
        "optimizer.rank",
        Choice((0.1, "auto", True)),
    )
    assert parse_table(SPACE) == {"optimizer.damping": Range(1e-10, 1e-2, is_log=True)}
    assert "optimizer.learning_rate" in wide("spring", {"optimizer.line_search": "none"})
    assert "optimizer.learning_rate" not in wide("spring", {"optimizer.line_search": "grid"})
    assert "optimizer.norm_cap" in wide("spring", {"optimizer.norm_cap": 1e-3})
    assert "optimizer.norm_cap" not in wide("spring", {"optimizer.norm_cap": "none"})
    with pytest.raises(InputError, match="like"):
        parse_table({"optimizer": {"damping": 3}})


def test_what_is_set_is_not_looked_for():
    found = plan_search("poisson_2d", "spring", None, {"optimizer.norm_cap": 0.01}, steps=1)
    assert set(found.space) == {f"optimizer.{k}" for k in ("damping", "momentum", "learning_rate")}
    open_study(found)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_a_space_that_its_settings_can_take(name):
    open_study(plan_search("poisson_2d", name, None, {}, steps=1))


def test_a_search_beats_the_default_and_compiles_one_program(tmp_path):
    compiled, counts = [], []

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    given = {"problem.name": "poisson_2d", "optimizer.name": "spring", "train.steps": 150}
    default = run(assemble(resolve(SMALL | given)), None, progress=False)

    def count(trial, study):
        counts.append(len(compiled))

    options = {"settings": SMALL, "steps": 150, "out": tmp_path / "s", "report": count}
    found = tune("poisson_2d", "spring", trials=5, refine=3, **options)
    assert found.is_complete
    assert [trial.number for trial in found.trials] == list(range(8))
    assert found.best is not None
    assert found.best.error < default.summary["final_l2"]
    assert found.best.error == min(trial.error for trial in found.trials)
    assert max(np.diff(counts[1:])) <= 2  # the picture of each trial, not its training
    best = read_file(tmp_path / "s" / BEST)
    assert resolve(best).optimizer["damping"] == found.best.params["optimizer.damping"]
    ranges = plan_search("poisson_2d", "spring", None, SMALL, steps=1).space
    for trial in found.trials[5:]:
        best = min(found.trials[: trial.number], key=lambda trial: trial.error).params
        for key, value in trial.params.items():
            narrow = ranges[key].narrowed(best[key])
            assert isinstance(narrow, Range)
            assert narrow.low <= value <= narrow.high


def test_trials_do_not_depend_on_the_workers():
    def params(count):
        study = Study.open(Search({}, parse_table(SPACE), trials=4, refine=0), None)
        tasks = [take(study) for _ in range(count)]
        return [task.params for task in tasks]

    assert params(4)[:2] == params(2)
    assert len({str(p) for p in params(4)}) == 4


def test_no_more_trials_are_handed_out_than_wanted():
    study = Study.open(Search({}, parse_table(SPACE), trials=2, refine=1), None)
    tasks = [take(study) for _ in range(3)]
    assert study.take() is None
    for task in tasks:
        task.finish(1.0)
    assert len(study.finished) == 3
    assert study.take() is None


def test_bad_trials_are_infinitely_bad_and_pruned_ones_are_not_best():
    study = Study.open(Search({}, parse_table(SPACE), trials=3, refine=0), None)
    first, second, third = (take(study) for _ in range(3))
    first.finish(float("nan"))
    second.finish(0.1, was_pruned=True)
    third.finish(0.5)
    assert study.best is not None
    assert study.best.number == third.number
    assert [trial.state for trial in study.trials()] == ["finished", "pruned", "finished"]
    assert study.trials()[0].error == float("inf")


def test_trials_are_ranked_by_their_error_at_the_end():
    ended = {"status": "finished", "best_l2": 1e-3, "final_l2": 1e-2, "final_validation_loss": 5.0}
    assert final_error(ended) == 1e-2
    assert final_error(ended | {"best_l2": None, "final_l2": None}) == 5.0  # no solution is known
    assert final_error(ended | {"status": "diverged"}) == math.inf
    assert final_error(ended | {"final_l2": math.nan}) == math.inf


def test_the_first_trial_after_the_wide_ones_is_narrow():
    space = wide("spring", {})
    study = Study.open(Search({}, space, trials=2, refine=1), None)
    for error in (2.0, 1.0):
        take(study).finish(error)
    assert study.best is not None
    best = study.best.params
    for key, value in take(study).params.items():
        narrow = space[key].narrowed(best[key])
        assert isinstance(narrow, Range)
        assert narrow.low <= value <= narrow.high


def test_trials_worse_than_the_median_are_cut_short():
    search = Search({}, parse_table(SPACE), trials=10, refine=0, prune=True)
    study = Study.open(search, None)
    for error in (1.0, 1.1, 0.9, 1.2, 0.8, 1.0):
        task = take(study)
        assert not any(task.watch(share / 10, error) for share in range(1, 11))
        task.finish(error)
    task = take(study)
    assert any(task.watch(share / 10, 50.0) for share in range(1, 11))
    tpe = Study.open(Search({}, parse_table(SPACE), trials=12, refine=0, sampler="tpe"), None)
    for _ in range(12):
        take(tpe).finish(1.0)
    assert len(tpe.finished) == 12


@pytest.mark.slow
def test_three_workers_one_of_them_killed_finish_every_trial_once(tmp_path):
    folder = tmp_path / "study"
    options = ["--trials", "20", "--refine", "10", "--steps", "120"]
    environment = os.environ | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    workers = [subprocess.Popen(command(folder, *options), **quiet) for _ in range(3)]
    victim = workers[1]
    deadline = time.monotonic() + 240
    while not _has_begun(folder, victim.pid):
        assert time.monotonic() < deadline
        assert victim.poll() is None
        time.sleep(0.1)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    workers[1] = subprocess.Popen(command(folder, *options), **quiet)
    assert [worker.wait(timeout=400) for worker in workers] == [0, 0, 0]

    found = work(join(folder))
    done = [trial for trial in found.trials if trial.state == "finished"]
    assert len(done) == 30
    lost = [trial for trial in found.trials if trial.state == "lost"]
    assert {t.continues for t in done} - {None} == {t.number for t in lost}
    assert len({str(trial.params) for trial in done}) == 30
    assert len(list((folder / "trials").iterdir())) == 30


def _has_begun(folder, process):
    """Whether a worker has a trial with settings: one lost before that is nobody's to continue."""
    try:
        search, _ = read_study(folder)
        study = Study.open(search, folder / "study.journal", folder.name)
    except InputError:
        return False
    trials = study._optuna.get_trials(deepcopy=False)
    return any(
        t.state.name == "RUNNING" and t.params and f"|{process}|" in t.user_attrs.get("worker", "")
        for t in trials
    )


def small_search(trials=2, **settings):
    given = {"problem.name": "poisson_2d", "optimizer.name": "spring", "train.steps": 8}
    return Search(SMALL | given | settings, parse_table(SPACE), trials, refine=0)


def test_lost_trials_are_continued_once_with_the_same_settings(monkeypatch):
    study = Study.open(Search({}, parse_table(SPACE), trials=2, refine=0), None)
    first = take(study)
    monkeypatch.setattr(natpinn.search.study.worker, "is_gone", lambda name: True)
    study._give_up_abandoned()
    assert study.trials()[0].state == "lost"
    study._requeue_lost()
    study._optuna.enqueue_trial(first.params, {"continues": 0})  # as another worker may do
    monkeypatch.setattr(natpinn.search.study.worker, "is_gone", lambda name: False)
    again = take(study)
    assert (again.continues, again.params) == (0, first.params)
    second = take(study)  # the surplus one is skipped
    assert second.continues is None
    assert study.take() is None
    first.finish(0.1)  # it was not dead after all, and is ignored
    assert first.watch(0.5, 0.1)  # and told to stop
    again.finish(0.2)
    second.finish(0.3)
    assert [t.error for t in study.finished] == [0.2, 0.3]
    states = [t.state for t in study.trials()]
    assert sorted(states) == ["finished", "finished", "lost", "surplus"]


def test_a_trial_that_waits_is_not_lost_with_the_next_worker(monkeypatch):
    study = Study.open(Search({}, parse_table(SPACE), trials=1, refine=0), None)
    first = take(study)
    monkeypatch.setattr(natpinn.search.study.worker, "is_gone", lambda name: True)
    for _ in range(3):  # each dies right after it has asked
        task = take(study)
        assert task.params == first.params
    assert len([t for t in study.trials() if t.state == "lost"]) == 3


def test_a_stopped_trial_goes_on_in_the_same_process(tmp_path, monkeypatch):
    bench = open_study(small_search(**{"train.steps": 40}), out=tmp_path / "s")
    honest = natpinn.search.tuning.run

    def interrupt(progress):
        if progress.step == 5:
            signal.raise_signal(signal.SIGINT)

    def run_and_interrupt(*arguments, callbacks=(), **options):
        return honest(*arguments, callbacks=[*callbacks, interrupt], **options)

    with monkeypatch.context() as patch:
        patch.setattr(natpinn.search.tuning, "run", run_and_interrupt)
        found = work(bench)
    assert found.is_stopped
    assert [t.state for t in found.trials] == ["lost"]
    assert found.best is None
    found = work(bench)
    assert found.is_complete
    assert [t.state for t in found.trials] == ["lost", "finished", "finished"]
    history = read_history(tmp_path / "s" / "trials" / "0001")
    assert history[-1]["step"] == 40
    assert not (tmp_path / "s" / "trials" / "0000").exists()


def test_a_worker_that_died_before_it_told_the_outcome_loses_nothing(tmp_path, monkeypatch):
    bench = open_study(small_search(trials=1), out=tmp_path / "s")
    task = take(bench.study)
    parts = assemble(bench.config(task.params), bench.problem)
    summary = run(parts, bench.trial_folder(task.number), progress=False).summary
    monkeypatch.setattr(natpinn.search.study.worker, "is_gone", lambda name: True)
    found = work(bench)
    assert found.best is not None
    assert found.best.error == summary["final_l2"]
    assert found.best.continues == 0


def test_settings_that_cannot_be_run_do_not_end_a_search(tmp_path, monkeypatch):
    bench = open_study(small_search(trials=3))
    honest, calls = natpinn.search.tuning.run, []

    def fail_second(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise InputError("out of memory")
        return honest(*arguments, **options)

    monkeypatch.setattr(natpinn.search.tuning, "run", fail_second)
    found = work(bench)
    assert found.is_complete
    assert [t.reason for t in found.trials] == ["", "out of memory", ""]
    calls[:] = [1]
    bench = open_study(small_search(trials=3))
    with pytest.raises(InputError, match="out of memory"):  # the very first one does
        work(bench)


def test_searches_do_not_mix_in_a_database(tmp_path):
    url = f"sqlite:///{tmp_path}/all.db"
    for folder, settings in (("a", {}), ("b", {"optimizer.momentum": 0.5})):
        work(open_study(small_search(trials=1, **settings), out=tmp_path / folder, storage=url))
    with pytest.raises(InputError, match="another search"):
        open_study(small_search(trials=2), out=tmp_path / "elsewhere" / "a", storage=url)
    with pytest.raises(InputError, match="other storage"):
        open_study(small_search(trials=1), out=tmp_path / "a", storage="sqlite:///x.db")
    again = open_study(small_search(trials=1), out=tmp_path / "a", storage=url)
    assert len(again.study.finished) == 1


def test_studies_run_no_code_that_their_files_name(tmp_path):
    work(open_study(small_search(trials=1), out=tmp_path / "s"))
    path = tmp_path / "s" / "study.toml"
    whole = path.read_text()
    path.write_text(whole.replace("[search.settings]", '[search.settings]\n"model.name" = "a:b"'))
    with pytest.raises(InputError, match=r"code of your own \(a:b\)"):
        join(tmp_path / "s")
    with pytest.raises(InputError, match="cannot be looked for"):
        tune("poisson_2d", space={"model": {"name": {"choice": ["a:b"]}}}, trials=1)


def test_whole_numbers_are_looked_for_as_such():
    space = {"points": {"interior": {"uniform": [20, 40]}}}
    options = {"settings": {"points.boundary": 8}, "steps": 2, "trials": 3, "refine": 2}
    found = tune("poisson_2d", "spring", space, **options)
    values = [t.params["points.interior"] for t in found.trials]
    assert all(isinstance(value, int) and 20 <= value <= 40 for value in values)


def test_a_study_goes_on_and_refuses_to_change(tmp_path):
    folder = tmp_path / "s"
    options = {"settings": SMALL, "steps": 10, "refine": 0, "out": folder}
    tune("poisson_2d", "spring", SPACE, trials=2, **options)
    found = tune("poisson_2d", "spring", SPACE, trials=2, **options)
    assert len(found.trials) == 2  # nothing was left to do
    with pytest.raises(InputError, match="other trials"):
        tune("poisson_2d", "spring", SPACE, trials=3, **options)
    (folder / "study.toml").write_text("[search]\n")
    with pytest.raises(InputError, match="damaged"):
        join(folder)
    with pytest.raises(InputError, match="not a study"):
        join(tmp_path)


def test_searches_that_cannot_work_are_explained(tmp_path):
    def search(space, **settings):
        return tune("poisson_2d", "spring", space, settings=settings, trials=1, out=tmp_path / "s")

    with pytest.raises(InputError, match=r"unknown setting 'optimizer\.dampin'"):
        search({"optimizer.dampin": {"uniform": [0, 1]}})
    with pytest.raises(InputError, match="both set and looked for"):
        search(SPACE, **{"optimizer.damping": 1e-3})
    with pytest.raises(InputError, match="momentum"):
        search({"optimizer.momentum": {"uniform": [0, 7]}})
    with pytest.raises(InputError, match=r"problem\.dimension cannot be looked for"):
        search({"problem.dimension": {"choice": [2, 3]}})
    with pytest.raises(InputError, match="cannot use the storage"):
        tune("poisson_2d", space=SPACE, storage="postgresql://nobody@127.0.0.1:1/x", out=tmp_path)
    assert not (tmp_path / "s").exists()


def test_a_problem_of_ones_own_is_tuned_from_python(tmp_path):
    def residual(u, x):
        return natpinn.laplacian(u)(x) - 1.0

    square = natpinn.Box.unit(2)
    problem = natpinn.Problem(
        {
            "inside": natpinn.Condition(residual, square, points=20),
            "edge": natpinn.Condition(lambda u, x: u(x), square.boundary, points=8),
        },
        name="membrane",
    )
    model = natpinn.MLP(2, (8,), key=jax.random.key(0))
    found = tune(problem, "engd_w", model=model, steps=5, trials=2, refine=0, out=tmp_path / "s")
    assert read_file(tmp_path / "s" / BEST)["model.name"] == "MLP"
    assert len(found.trials) == 2
    assert all(trial.error < 1 for trial in found.trials)
    assert found.ranked_by == "validation loss"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("initdb") is None, reason="PostgreSQL is not installed")
def test_workers_may_share_a_database(tmp_path):
    pytest.importorskip("psycopg")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = tempfile.TemporaryDirectory()  # which a user who is not root may enter
    data = Path(place.name) / "database"
    data.mkdir()
    user = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        try:
            entry = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("there is no user for PostgreSQL")
        os.chmod(place.name, 0o755)
        os.chown(data, entry.pw_uid, entry.pw_gid)
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    quiet = {"check": True, "capture_output": True, "cwd": data, **user}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    subprocess.run(["initdb", "-D", data, "-U", "natpinn", "-A", "trust"], **quiet)
    where = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -p {port}"
    log = ["-l", data / "log", "-o", where]
    subprocess.run(["pg_ctl", "-D", data, "-w", *log, "start"], **quiet)
    try:
        url = f"postgresql+psycopg://natpinn@127.0.0.1:{port}/postgres"
        search = ["--trials", "4", "--refine", "0", "--steps", "5", "--storage", url]
        workers = [  # each with a folder of its own, as on another machine
            subprocess.Popen(command(tmp_path / i / "s", *search), **pipe) for i in ("a", "b")
        ]
        outputs = [worker.communicate(timeout=300)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], outputs
        again = [*command(tmp_path / "a" / "s", *search), "--json"]
        found = json.loads(subprocess.run(again, check=True, capture_output=True).stdout)
        assert [trial["state"] for trial in found["trials"]] == ["finished"] * 4
        folders = [len(list((tmp_path / i / "s" / "trials").iterdir())) for i in ("a", "b")]
        assert sum(folders) == 4
    finally:
        subprocess.run(["pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet)
        place.cleanup()
