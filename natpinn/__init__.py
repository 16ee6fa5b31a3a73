"""natpinn: physics-informed neural networks trained with natural gradients.

The public names stand in `__init__.pyi`. Each is loaded where it is first used, so that commands
which compute nothing answer without JAX.
"""

import ast
import importlib
import os
import sys
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)
else:
    os.environ["JAX_ENABLE_X64"] = "1"  # read when JAX is loaded, before any array is made


def _public_names() -> dict[str, str]:
    """Each public name, and the module that has it."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.name: "." + (node.module or alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


_MODULES = _public_names()
__all__ = ["__version__", *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name], __name__)
    found = module if _MODULES[name] == f".{name}" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
