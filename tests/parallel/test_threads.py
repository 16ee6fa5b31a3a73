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
        (9000, 4.0, "gpu", 1),
    ],
)
def test_threads_follow_the_size_and_the_load(side, idle, backend, expected, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 4)
    monkeypatch.setattr(threads, "idle_cores", lambda: idle)
    assert lapack_threads_for(side, backend) == expected


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


def test_the_limit_holds_inside_with_alone():
    before = blas_threads()
    with limit_lapack(Plan(backend="cpu", lapack_threads=1)):
        assert blas_threads() == {1}
    assert blas_threads() == before
    for plan in (Plan(backend="gpu", lapack_threads=1), Plan(backend="cpu")):
        with limit_lapack(plan):
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
