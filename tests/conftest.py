"""Shared by all tests: programs that several tests compile are compiled once, in this run alone."""

import os
import tempfile

import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have the folder of the process above them
    _cache = tempfile.TemporaryDirectory(prefix="natpinn-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Eight devices, and programs that compile quickly: tests run most of them once.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_cpu_use_fusion_emitters=false"
)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Thousands of loaded programs take more maps of memory than a process may have."""
    yield
    import jax

    jax.clear_caches()
