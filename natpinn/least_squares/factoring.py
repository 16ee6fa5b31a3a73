"""Dense layers, found in the gradient of a residual: ∂r/∂W = Σₛ gₛ zₛᵀ.

One layer appears in a residual several times: for the value, for each first derivative, for the
Laplacian. Each appearance is a stream s, with the layer's input zₛ and the cotangent gₛ of its
output. The streams are read off the program that computes the gradient, so equations stay unaware.
A bias is one more input of its layer: 1 in the streams where it is added to what the matrix gives.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from ..errors import InputError
from ..models.theta import Theta
from .blocks import Block, Dense, Factored, RowBlock, is_worth_factoring

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn, Var
    from jax.lax import DotDimensionNumbers

CALLS = {  # primitives that only wrap another program, and their parameter that holds it
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
SAME = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "copy"}
SUMS = {"add", "add_any"}


class DenseLayer(NamedTuple):
    """A weight matrix among the leaves of θ, and the bias beside it."""

    name: str
    weight: int  # the number of the leaf
    bias: int | None


class _Pair(NamedTuple):
    """AᵀB, and what A and B were before they became matrices with a stream in each row."""

    left: Float[Array, "s out"]
    right: Float[Array, "s in"]
    sources: tuple[ArrayLike, ...]

    def swapped(self) -> "_Pair":
        return _Pair(self.right, self.left, self.sources[::-1])


class _OuterProducts:
    """A matrix that is not formed yet: a sum of products AᵀB."""

    def __init__(self, pairs: Sequence[_Pair]):
        self.pairs = list(pairs)

    def form(self) -> Float[Array, "out in"]:
        return sum((pair.left.T @ pair.right for pair in self.pairs), start=jnp.zeros(()))

    def factors(self) -> Factored:
        left, right, _ = zip(*self.pairs, strict=True)
        return Factored(jnp.concatenate(left), jnp.concatenate(right))


Value = Array | _OuterProducts  # of a program


class LayerFactors(eqx.Module):
    """`Factored` of a whole layer, and whether its matrix is used as x @ W, not as W @ x."""

    factors: Factored
    is_transposed: bool = eqx.field(static=True)


class _Trace:
    """How a program uses its parameters: what is multiplied with a matrix, and what is added.

    Values are known by their ids, and kept, so that no other value gets the same.
    """

    def __init__(self, parameters: Sequence[Array] = ()):
        self._kept: list[object] = list(parameters)
        self._sums: dict[int, frozenset[int]] = {}  # a value as a sum of others, up to its shape
        self._matrices = {id(p): (id(p), False) for p in parameters if np.ndim(p) == 2}
        self._products: dict[int, tuple[int, int, frozenset[int]]] = {}

    def parts(self, value: object) -> frozenset[int]:
        """Which values this one is the sum of; of none if it is zero."""
        if id(value) in self._sums:
            return self._sums[id(value)]
        is_number = isinstance(value, float | int | np.number | np.ndarray)
        return frozenset() if is_number and not np.any(value) else frozenset({id(value)})

    def multiplied(self, matrix: Array) -> list[tuple[int, frozenset[int]]]:
        """What is multiplied with a matrix, and along which of its axes."""
        found = self._products.values()
        return [(axis, other) for of, axis, other in found if of == id(matrix)]

    def multiplied_beside(self, matrix: Array, bias: Array) -> list[tuple[int, frozenset[int]]]:
        """The same, of the products that a bias is added to."""
        sums = {parts for parts in self._sums.values() if id(bias) in parts and len(parts) > 1}
        sums = [parts for parts in sums if not any(other < parts for other in sums)]  # added first
        return [
            (axis, other)
            for product, (of, axis, other) in self._products.items()
            if of == id(matrix) and any(product in parts for parts in sums)
        ]

    def record(self, equation: "JaxprEqn", inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        name, params = equation.primitive.name, equation.params
        if any(isinstance(value, _OuterProducts) for value in (*inputs, *outputs)):
            return
        self._kept += [*inputs, *outputs]
        if name in SUMS:
            self._sums[id(outputs[0])] = frozenset().union(*map(self.parts, inputs))
        elif name in SAME and self._is_faithful(inputs[0], outputs[0]):
            self._sums[id(outputs[0])] = self.parts(inputs[0])
        elif name == "reduce_sum" and inputs[0].ndim == 2 and tuple(params["axes"]) == (0,):
            self._sums[id(outputs[0])] = self.parts(inputs[0])  # over streams
        if name in ("convert_element_type", "copy", "transpose"):
            self._follow_matrix(inputs[0], outputs[0], is_turned=name == "transpose")
        if name == "dot_general":
            self._record_product(params["dimension_numbers"], inputs, outputs[0])

    def _follow_matrix(self, before: Array, after: Array, is_turned: bool) -> None:
        if id(before) in self._matrices:
            matrix, was_turned = self._matrices[id(before)]
            self._matrices[id(after)] = (matrix, was_turned != is_turned)

    def _record_product(
        self, dimensions: "DotDimensionNumbers", inputs: Sequence[Array], product: Array
    ) -> None:
        contracted, (batch, _) = dimensions
        for i, other in ((0, inputs[1]), (1, inputs[0])):
            known = self._matrices.get(id(inputs[i]))
            if known is None or batch or len(contracted[i]) != 1:
                continue
            matrix, is_turned = known
            axis = 1 - contracted[i][0] if is_turned else contracted[i][0]
            self._products[id(product)] = (matrix, axis, self.parts(other))

    def _is_faithful(self, before: Array, after: Array) -> bool:
        """Whether an operation changes only the shape of a value, and repeats no number of it."""
        return not self.parts(before) or np.size(before) == np.size(after)


def factored(
    gradient: Callable[..., tuple[Array, Theta]],
) -> Callable[..., tuple[Array, RowBlock]]:
    """A function that returns a number and its gradients, with a `Block` of one row for each.

    A matrix that is a sum of outer products becomes `Factored`, where its factors are smaller.
    """

    def evaluate(*arguments: PyTree) -> tuple[Array, RowBlock]:
        program, (_, shape) = jax.make_jaxpr(gradient, return_shape=True)(*arguments)
        value, *gradients = _run(
            program.jaxpr, program.consts, jax.tree.leaves(arguments), _Trace()
        )
        return value, jax.tree.structure(shape).unflatten([_block(found) for found in gradients])

    return evaluate


def dense_layers(theta: Theta) -> list[DenseLayer]:
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
    gradient: Callable[..., Theta], layers: Sequence[DenseLayer]
) -> Callable[..., list[LayerFactors]]:
    """The factors (s, out), (s, in) of each layer, from a function of θ that returns gradients.

    Layers with a bias have one more input, which is 1 where the bias is used and 0 elsewhere.
    """

    def evaluate(theta: Theta, *others: PyTree) -> list[LayerFactors]:
        program = jax.make_jaxpr(gradient)(theta, *others)
        parameters = jax.tree.leaves(theta)
        trace = _Trace(parameters)
        arguments = [*parameters, *jax.tree.leaves(others)]
        gradients = _run(program.jaxpr, program.consts, arguments, trace)
        return [_layer_factors(layer, parameters, gradients, trace) for layer in layers]

    return evaluate


def _layer_factors(
    layer: DenseLayer, parameters: Sequence[Array], gradients: Sequence[Value], trace: _Trace
) -> LayerFactors:
    matrix, gradient = parameters[layer.weight], gradients[layer.weight]
    if not isinstance(gradient, _OuterProducts):
        if trace.parts(gradient):
            raise _cannot_treat(layer, "its gradient is no sum of outer products")
        rows, columns = matrix.shape  # the layer does not occur in this residual
        nothing = (jnp.zeros((1, rows)), jnp.zeros((1, columns)), (0.0, 0.0))
        gradient = _OuterProducts([_Pair(*nothing)])
    if layer.bias is None:
        if any(axis == 0 for axis, _ in trace.multiplied(matrix)[:1]):
            raise _cannot_treat(layer, "without a bias it must be used as W @ x, not as x @ W")
        return LayerFactors(gradient.factors(), False)

    bias = parameters[layer.bias]
    beside = trace.multiplied_beside(matrix, bias)
    axes = {axis for axis, _ in beside} or {1 if len(bias) == matrix.shape[0] else 0}
    if len(axes) > 1:
        raise _cannot_treat(layer, "it is used both as W @ x and as x @ W")
    is_transposed = axes == {0}
    pairs = [pair.swapped() for pair in gradient.pairs] if is_transposed else gradient.pairs
    with_bias = {parts for _, parts in beside}
    has_bias = [trace.parts(pair.sources[1]) in with_bias for pair in pairs]
    covered = [trace.parts(p.sources[0]) for p, has in zip(pairs, has_bias, strict=True) if has]
    if frozenset().union(*covered) != trace.parts(gradients[layer.bias]):
        raise _cannot_treat(layer, "its bias is not added to what the matrix gives")
    ones = [jnp.full(len(p.left), float(has)) for p, has in zip(pairs, has_bias, strict=True)]
    factors = _OuterProducts(pairs).factors()
    inputs = jnp.concatenate([factors.inputs, jnp.concatenate(ones)[:, None]], axis=1)
    return LayerFactors(Factored(factors.cotangents, inputs), is_transposed)


def _cannot_treat(layer: DenseLayer, why: str) -> InputError:
    return InputError(
        f"only dense layers x ↦ W x + b can be treated, and {layer.name} is not used as one: "
        f"{why}; use another optimizer, as spring or engd_w"
    )


def _block(gradient: Value) -> Block:
    """A gradient as it is held."""
    if not isinstance(gradient, _OuterProducts):
        return Dense(gradient)
    factors = gradient.factors()
    return factors if is_worth_factoring(factors) else Dense(gradient.form())


def _run(
    jaxpr: "Jaxpr", constants: Sequence[Value], arguments: Sequence[Value], trace: _Trace
) -> list[Any]:
    """Run a program, leaving products of matrices unformed until something needs them."""
    values: dict[Var, Value] = {}

    def read(atom: Any) -> Value:
        return atom.val if hasattr(atom, "val") else values[atom]

    def read_formed(atom: Any) -> Array:
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
            outputs = _run(*closed, inputs, trace)
        elif outputs is None:
            formed = [read_formed(atom) for atom in equation.invars]
            outputs = equation.primitive.bind(*formed, **equation.params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        trace.record(equation, inputs, outputs)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _unformed(name: str, params: dict[str, Any], inputs: list[Any]) -> list[Value] | None:
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


def _outer_pair(dimensions: "DotDimensionNumbers", inputs: list[Any]) -> _Pair | None:
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
