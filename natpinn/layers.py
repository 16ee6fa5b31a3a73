"""Dense layers, found in the gradient of a residual: ∂r/∂W = Σₛ gₛ zₛᵀ.

One layer appears in a residual several times: for the value, for each first derivative, for the
Laplacian. Each appearance is a stream s, with the layer's input zₛ and the cotangent gₛ of its
output. The streams are read off the program that computes the gradient, so equations stay unaware.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

CALLS = {  # primitives that only wrap another program, and under which name they keep it
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}


class Factors(eqx.Module):
    """The gradients of one weight matrix at n points: Σₛ cotangents[n, s] inputs[n, s]ᵀ."""

    cotangents: Float[Array, "n s out"]
    inputs: Float[Array, "n s in"]

    def __len__(self) -> int:
        return len(self.cotangents)

    def __getitem__(self, rows: slice) -> "Factors":
        return Factors(self.cotangents[rows], self.inputs[rows])

    @property
    def explicit(self) -> Float[Array, "n out in"]:
        return jnp.einsum("nso,nsi->noi", self.cotangents, self.inputs)

    @property
    def streams(self) -> int:
        return self.cotangents.shape[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self), self.cotangents.shape[2], self.inputs.shape[2]


class _OuterProducts:
    """A matrix that is not formed yet: a sum of products AᵀB, kept as pairs (A, B)."""

    def __init__(self, pairs: Sequence[tuple[Array, Array]]):
        self.pairs = list(pairs)

    def form(self) -> Float[Array, "out in"]:
        return sum((a.T @ b for a, b in self.pairs), start=jnp.zeros(()))

    def factors(self) -> Factors:
        left, right = zip(*self.pairs, strict=True)
        return Factors(jnp.concatenate(left), jnp.concatenate(right))


def factored(function: Callable[..., Any], worth: Callable[[Factors], bool]) -> Callable[..., Any]:
    """The same function, with each matrix it returns as `Factors` (s, out), (s, in) where it is a
    sum of outer products and the factors are worth keeping."""

    def evaluate(*arguments: Any) -> Any:
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = _run(program.jaxpr, program.consts, jax.tree.leaves(arguments))
        return jax.tree.structure(shape).unflatten([_finish(output, worth) for output in outputs])

    return evaluate


def _finish(output: Any, worth: Callable[[Factors], bool]) -> Any:
    if not isinstance(output, _OuterProducts):
        return output
    factors = output.factors()
    return factors if worth(factors) else output.form()


def _run(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Run a program, leaving products of matrices unformed until something needs them."""
    values: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    def read_formed(atom: Any) -> Any:
        value = read(atom)
        if isinstance(value, _OuterProducts):
            value = values[atom] = value.form()
        return value

    values.update(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        name, inputs = equation.primitive.name, [read(atom) for atom in equation.invars]
        outputs = _unformed(name, equation.params, inputs)
        if outputs is None and name in CALLS:
            inner = equation.params[CALLS[name]]
            closed = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
            outputs = _run(*closed, inputs)
        elif outputs is None:
            formed = [read_formed(atom) for atom in equation.invars]
            outputs = equation.primitive.bind(*formed, **equation.params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _unformed(name: str, params: dict[str, Any], inputs: list[Any]) -> list[Any] | None:
    """What a primitive does to matrices that need not be formed; None if it needs them formed."""
    if name == "dot_general":
        pair = _outer_pair(params["dimension_numbers"], inputs)
        return None if pair is None else [_OuterProducts([pair])]
    if not any(isinstance(value, _OuterProducts) for value in inputs):
        return None
    if name in ("add", "add_any") and all(isinstance(value, _OuterProducts) for value in inputs):
        return [_OuterProducts([pair for value in inputs for pair in value.pairs])]
    if name == "transpose" and tuple(params["permutation"]) == (1, 0):
        return [_OuterProducts([(b, a) for a, b in inputs[0].pairs])]
    return None


def _outer_pair(dimensions: Any, inputs: list[Any]) -> tuple[Array, Array] | None:
    """The operands of a product as A (s, out), B (s, in), if it is of the form AᵀB."""
    (left_contracted, right_contracted), (left_batch, _) = dimensions
    if left_batch or any(isinstance(value, _OuterProducts) for value in inputs):
        return None
    left, right = inputs
    if left.ndim - len(left_contracted) != 1 or right.ndim - len(right_contracted) != 1:
        return None
    return _streams_first(left, left_contracted), _streams_first(right, right_contracted)


def _streams_first(operand: Array, contracted: Sequence[int]) -> Float[Array, "s q"]:
    kept = [axis for axis in range(operand.ndim) if axis not in contracted]
    moved = jnp.transpose(operand, [*contracted, *kept])
    return moved.reshape(-1, moved.shape[-1])
