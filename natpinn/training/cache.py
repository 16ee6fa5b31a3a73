"""Compiled programs, kept on disk."""

import os
from pathlib import Path

import jax

WORTH_KEEPING = 0.02  # seconds of compiling from which a program is kept on disk


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder.

    Nothing changes where JAX was told a folder, or where NATPINN_NO_CACHE is set.
    """
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None and "NATPINN_NO_CACHE" not in os.environ:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "natpinn"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
