"""Dense layers, found in the gradient of a residual: ∂r/∂W = Σₛ gₛ zₛᵀ.

One layer appears in a residual several times: for the value, for each first derivative, for the
Laplacian. Each appearance is a stream s, with the layer's input zₛ and the cotangent gₛ of its
output. The streams are read off the program that computes the gradient, so equations stay unaware.
A bias is one more input of its layer: 1 in the streams whose cotangents add up to its gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .errors import InputError

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


RESHAPES = {
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "reduce_sum",
}
SUMS = {"add", "add_any"}


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


class DenseLayer(NamedTuple):
    """A weight matrix among the leaves of θ, and the bias beside it."""

    name: str
    weight: int  # the number of the leaf
    bias: int | None


class _Pair(NamedTuple):
    """AᵀB, and what A and B were before they became matrices with a stream in each row."""

    left: Float[Array, "s out"]
    right: Float[Array, "s in"]
    sources: tuple[Any, Any]

    def swapped(self) -> "_Pair":
        return _Pair(self.right, self.left, self.sources[::-1])


class _OuterProducts:
    """A matrix that is not formed yet: a sum of products AᵀB."""

    def __init__(self, pairs: Sequence[_Pair]):
        self.pairs = list(pairs)

    def form(self) -> Float[Array, "out in"]:
        return sum((pair.left.T @ pair.right for pair in self.pairs), start=jnp.zeros(()))

    def factors(self) -> Factors:
        left, right, _ = zip(*self.pairs, strict=True)
        return Factors(jnp.concatenate(left), jnp.concatenate(right))


class _Sums:
    """Which values a value is the sum of, up to its shape; of none if it is zero."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[Any, dict[int, Any]]] = {}  # objects are kept: ids stay theirs

    def of(self, value: Any) -> dict[int, Any]:
        if id(value) in self._parts:
            return self._parts[id(value)][1]
        is_number = isinstance(value, float | int | np.number | np.ndarray)
        return {} if is_number and not np.any(value) else {id(value): value}

    def record(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if any(isinstance(value, _OuterProducts) for value in (*inputs, *outputs)):
            return
        parts = {key: part for value in inputs for key, part in self.of(value).items()}
        if name in SUMS or (name in RESHAPES and self._is_faithful(name, inputs[0], outputs[0])):
            self._parts[id(outputs[0])] = (outputs[0], parts)

    def _is_faithful(self, name: str, before: Any, after: Any) -> bool:
        """Whether a value stays what it is: not one number repeated, nor a sum within a stream."""
        if name == "reduce_sum":
            return before.ndim == 2 and after.ndim == 1  # over streams
        return not self.of(before) or np.size(before) == np.size(after)


def factored(function: Callable[..., Any], worth: Callable[[Factors], bool]) -> Callable[..., Any]:
    """The same function, with each matrix it returns as `Factors` (s, out), (s, in) where it is a
    sum of outer products and the factors are worth keeping."""

    def evaluate(*arguments: Any) -> Any:
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = _run(program.jaxpr, program.consts, jax.tree.leaves(arguments), _Sums())
        return jax.tree.structure(shape).unflatten([_finish(output, worth) for output in outputs])

    return evaluate


def dense_layers(theta: Any) -> list[DenseLayer]:
    """The layers that parameters belong to: matrices, each perhaps with a vector beside it."""
    leaves = jax.tree_util.tree_flatten_with_path(theta)[0]
    names = [jax.tree_util.keystr(path).lstrip(".") for path, _ in leaves]
    found, biases = [], set()
    for i, (path, leaf) in enumerate(leaves):
        if leaf.ndim != 2:
            continue
        beside = [
            j
            for j, (other, vector) in enumerate(leaves)
            if other[:-1] == path[:-1] and vector.ndim == 1 and len(vector) in leaf.shape
        ]
        bias = beside[0] if len(beside) == 1 else None
        found.append(DenseLayer(names[i], i, bias))
        biases.add(bias)
    covered = biases | {layer.weight for layer in found}
    for i, (_, leaf) in enumerate(leaves):
        if i not in covered:
            raise InputError(
                f"only dense layers can be treated: {names[i]}, of shape {leaf.shape}, is neither "
                f"a matrix nor the one bias of the matrix beside it; use another optimizer, as "
                f"spring or engd_w"
            )
    return found


def by_layer(
    gradient: Callable[..., Any], layers: Sequence[DenseLayer]
) -> Callable[..., list[Factors]]:
    """The factors (s, out), (s, in) of each layer, from a function that returns its gradients.

    Layers with a bias have one more input, which is 1 where the bias is used and 0 elsewhere.
    """

    def evaluate(*arguments: Any) -> list[Factors]:
        program = jax.make_jaxpr(gradient)(*arguments)
        sums = _Sums()
        leaves = _run(program.jaxpr, program.consts, jax.tree.leaves(arguments), sums)
        return [_layer_factors(layer, leaves, sums) for layer in layers]

    return evaluate


def _layer_factors(layer: DenseLayer, leaves: list[Any], sums: _Sums) -> Factors:
    weight, bias = leaves[layer.weight], None if layer.bias is None else leaves[layer.bias]
    if not isinstance(weight, _OuterProducts):
        if sums.of(weight) or (bias is not None and sums.of(bias)):
            raise _cannot_treat(layer, "its gradient is no sum of outer products")
        out, into = weight.shape  # it has no part in this residual
        weight = _OuterProducts([_Pair(jnp.zeros((1, out)), jnp.zeros((1, into)), (None, None))])
    if bias is None:
        return weight.factors()
    for pairs in (weight.pairs, [pair.swapped() for pair in weight.pairs]):
        ones = _where_bias_is_used(pairs, bias, sums)
        if ones is not None:
            factors = _OuterProducts(pairs).factors()
            inputs = jnp.concatenate([factors.inputs, ones[:, None]], axis=1)
            return Factors(factors.cotangents, inputs)
    raise _cannot_treat(layer, "its bias is not added to what the matrix gives")


def _where_bias_is_used(
    pairs: Sequence[_Pair], bias: Any, sums: _Sums
) -> Float[Array, " s"] | None:
    """1 for the streams whose cotangents add up to the gradient of the bias, if some do."""
    if pairs[0].left.shape[1] != bias.shape[0]:
        return None
    parts = sums.of(bias).keys()
    used = [sums.of(pair.sources[0]).keys() for pair in pairs]
    is_used = [bool(mine) and mine <= parts for mine in used]
    covered = {key for mine, is_mine in zip(used, is_used, strict=True) if is_mine for key in mine}
    if covered != set(parts):
        return None
    streams = [jnp.full(len(p.left), float(mine)) for p, mine in zip(pairs, is_used, strict=True)]
    return jnp.concatenate(streams)


def _cannot_treat(layer: DenseLayer, why: str) -> InputError:
    return InputError(
        f"only dense layers x ↦ W x + b can be treated, and {layer.name} is not used as one: "
        f"{why}; use another optimizer, as spring or engd_w"
    )


def _finish(output: Any, worth: Callable[[Factors], bool]) -> Any:
    if not isinstance(output, _OuterProducts):
        return output
    factors = output.factors()
    return factors if worth(factors) else output.form()


def _run(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any], sums: _Sums) -> list[Any]:
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
            outputs = _run(*closed, inputs, sums)
        elif outputs is None:
            formed = [read_formed(atom) for atom in equation.invars]
            outputs = equation.primitive.bind(*formed, **equation.params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        sums.record(name, inputs, outputs)
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
        return [_OuterProducts([pair.swapped() for pair in inputs[0].pairs])]
    return None


def _outer_pair(dimensions: Any, inputs: list[Any]) -> _Pair | None:
    """The operands of a product as A (s, out), B (s, in), if it is of the form AᵀB."""
    (left_contracted, right_contracted), (left_batch, _) = dimensions
    if left_batch or any(isinstance(value, _OuterProducts) for value in inputs):
        return None
    left, right = inputs
    if left.ndim - len(left_contracted) != 1 or right.ndim - len(right_contracted) != 1:
        return None
    return _Pair(
        _streams_first(left, left_contracted),
        _streams_first(right, right_contracted),
        (left, right),
    )


def _streams_first(operand: Array, contracted: Sequence[int]) -> Float[Array, "s q"]:
    kept = [axis for axis in range(operand.ndim) if axis not in contracted]
    moved = jnp.transpose(operand, [*contracted, *kept])
    return moved.reshape(-1, moved.shape[-1])
