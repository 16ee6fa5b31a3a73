"""LAPACK has as many threads as a step's solve is worth, on a machine as busy as it is."""

import pytest
from threadpoolctl import threadpool_info

import natpinn
from natpinn.parallel import threads
from natpinn.parallel.plan import Plan
from natpinn.parallel.threads import idle_cores, lapack_threads_for, limit_lapack


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize(
    ("side", "idle", "backend", "expected"),
    [
        (500, 4.0, "cpu", 1),  # too small for two
        (1500, 4.0, "cpu", 2),
        (9000, 4.0, "cpu", 4),  # no more than there are cores
        (9000, 2.6, "cpu", 3),
        (9000, 0.1, "cpu", 1),
        (9000, 4.0, "gpu", None),
    ],
)
def test_threads_follow_the_size_and_the_load(side, idle, backend, expected, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setattr(threads, "idle_cores", lambda: idle)
    monkeypatch.setattr(threads.jax, "default_backend", lambda: backend)
    assert lapack_threads_for(side) == expected


@pytest.mark.parametrize(
    ("optimizer", "side"),
    [
        (natpinn.spring(), 1000),
        (natpinn.engd(), 300),
        (natpinn.spring_nystrom(rank=100), 594),  # 18 · 1000 · 108² operations
        (natpinn.kfac(), 0),
        (natpinn.adam(), 0),
    ],
    ids=["spring", "engd", "spring_nystrom", "kfac", "adam"],
)
def test_a_solve_is_as_large_as_its_system(optimizer, side):
    assert optimizer.footprint(1000, 300).side(1000, 300) == side


def test_the_load_of_a_machine_is_that_of_other_processes(monkeypatch):
    monkeypatch.setattr(threads, "SAMPLE_SECONDS", 1e-6)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(threads.time, "process_time", lambda: 0.0)
    ticks = iter([(100, 1000), (125, 1100)])  # a quarter of the time was idle
    monkeypatch.setattr(threads, "_ticks", lambda: next(ticks))
    assert idle_cores() == 2
    monkeypatch.setattr(threads, "_ticks", lambda: None)
    assert idle_cores() == 8


def test_the_limit_holds_inside_with_alone(monkeypatch):
    before = blas_threads()
    with limit_lapack(1):
        assert blas_threads() == {1}
    assert blas_threads() == before
    monkeypatch.setattr(threads, "cores", lambda: 1)
    with limit_lapack(16):  # as a run had that began on another machine
        assert blas_threads() == {1}
    with limit_lapack(None):
        assert blas_threads() == before


def test_runs_side_by_side_leave_no_limit_behind():
    before = blas_threads()
    first, second = limit_lapack(1), limit_lapack(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # the first to begin ends first
    assert blas_threads() == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


def test_a_run_keeps_to_its_threads_and_records_them():
    seen = []
    solution = natpinn.solve(
        "poisson_2d",
        steps=1,
        points={"interior": 20, "boundary": 10},
        progress=False,
        callbacks=[lambda progress: seen.append(blas_threads())],
    )
    assert seen == [{1}] * len(seen) != []
    assert solution.summary["lapack_threads"] == 1


def test_another_number_of_threads_is_the_same_program():
    assert Plan(lapack_threads=1) == Plan(lapack_threads=2)
    packed = Plan(lapack_threads=2).packed()
    assert Plan.unpacked(packed, None).lapack_threads == 2


def test_a_resumed_run_keeps_its_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("natpinn.planning.planned.lapack_threads_for", lambda side: 2)
    few = {"interior": 20, "boundary": 10}
    path = tmp_path / "run"
    natpinn.solve("poisson_2d", steps=1, points=few, out=path, progress=False)
    monkeypatch.undo()  # the machine is busy now
    assert natpinn.resume(path, steps=2, progress=False).summary["lapack_threads"] == 2
