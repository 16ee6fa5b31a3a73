"""Programs that JAX has traced, and those inside them."""

from typing import Any

import jax


def inner_programs(equation: Any) -> list[Any]:
    """The bodies of a loop, a condition or a call."""
    found = []
    for parameter in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns")):
        inner = getattr(parameter, "jaxpr", parameter)
        if hasattr(inner, "eqns"):
            found.append(inner)
    return found
