"""Sketches are timed beside each other."""

import pytest

from natpinn.bench.sketches import compare_algorithms


def test_bench_nystrom_compares_the_algorithms():
    for name, row in compare_algorithms(60, [0.2, 0.5], runs=2, warm_ups=1).items():
        assert row["gpu"]["seconds"] > 0
        assert row["gpu"]["peak_memory_bytes"] > 0
        assert row["gpu"]["error"] == pytest.approx(row["standard"]["error"], rel=0.5)
        assert row["speedup"] == row["standard"]["seconds"] / row["gpu"]["seconds"]
        assert name in ("0.2", "0.5")
