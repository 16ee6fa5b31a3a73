"""Compiled programs, kept on disk."""

import os

import jax

WORTH_KEEPING = 0.02  # seconds of compiling from which a program is kept on disk


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder.

    Nothing changes where JAX was told a folder, where NATPINN_NO_CACHE is set, or without a home.
    """
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None and "NATPINN_NO_CACHE" not in os.environ:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if not os.path.isabs(root):  # there is no home, or the variable is not as it should be
            return
        jax.config.update("jax_compilation_cache_dir", os.path.join(root, "natpinn"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
