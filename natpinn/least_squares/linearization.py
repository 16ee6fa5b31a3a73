"""A least-squares problem near some parameters: residual + J v, and products of J."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from ..models.theta import Theta
from ..parallel.devices import BY_ROWS, DEVICES, REPLICATED, on_each_device
from . import cost, kernel
from .blocks import RowBlock
from .cost import Counted
from .rows import Rows

if TYPE_CHECKING:
    from .objective import LeastSquares

Result = TypeVar("Result")


class Linearization(eqx.Module):
    """The linear model residual(θ + v) ≈ residual + J v, with the rows of each condition together.

    `LeastSquares.linearize` makes it. J is held in memory, or else streamed: its rows are computed
    whenever the kernel needs them, and J v and Jᵀ y by forward and reverse mode.

    **Arguments:**

    - `objective`: the least-squares problem.
    - `theta`: the parameters θ.
    - `residual`: r(θ), of shape (n,).
    - `jacobian`: one block of rows for each condition; None where it is streamed.

        import equinox as eqx
        import jax
        import natpinn

        @eqx.filter_jit
        def kernel(objective, theta):
            return objective.linearize(theta).kernel()

        key = jax.random.key(0)
        problem = natpinn.problems.get("poisson_2d", points={"interior": 20, "boundary": 5})
        objective, theta = problem.objective(problem.default_model(key), problem.sample(key))
        print(kernel(objective, theta).shape)
    """

    objective: "LeastSquares"
    theta: Theta
    residual: Float[Array, " n"]
    jacobian: tuple[RowBlock, ...] | None  # one row block for each condition

    @property
    def rows(self) -> dict[str, slice]:
        """Which rows belong to which condition."""
        counts = self.objective.row_counts(self.theta)
        ends = list(accumulate(counts.values(), initial=0))
        return dict(zip(counts, map(slice, ends[:-1], ends[1:]), strict=True))

    def jvp(self, v: Theta) -> Float[Array, " n"]:
        """J v."""
        if self.jacobian is None:
            return jax.jvp(self.objective.residual, (self.theta,), (v,))[1]
        product = self._on_each_device(kernel.jacobian_vector, (BY_ROWS, REPLICATED), BY_ROWS)
        return jnp.concatenate([product(rows, v) for rows in self.jacobian])

    def vjp(self, y: Float[Array, " n"]) -> Theta:
        """Jᵀ y."""
        if self.jacobian is None:
            return jax.vjp(self.objective.residual, self.theta)[1](y)[0]

        def total(rows: RowBlock, y: Float[Array, " n"]) -> Theta:
            return self._sum_over_devices(kernel.vector_jacobian(rows, y))

        product = self._on_each_device(total, (BY_ROWS, BY_ROWS), REPLICATED)
        parts = [product(r, y[i]) for r, i in zip(self.jacobian, self.rows.values(), strict=True)]
        return jax.tree.map(lambda *leaves: sum(leaves), *parts)

    def kernel(self) -> Float[Array, "n n"]:
        """J Jᵀ."""
        return self.on_rows(lambda rows: kernel.kernel(rows, self.objective.plan))

    def kernel_mm(self, y: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """J (Jᵀ Y), without forming the kernel."""
        return self.on_rows(lambda rows, y: kernel.kernel_times(rows, y, self.objective.plan), y)

    def kernel_trace(self) -> Float[Array, ""]:
        """tr J Jᵀ, without forming the kernel."""
        return self.on_rows(lambda rows: kernel.trace(rows, self.objective.plan))

    def kernel_operations(self) -> float:
        """The number of operations of `kernel`, from shapes alone."""
        return cost.kernel_operations(self._counted())

    def product_operations(self, columns: int) -> float:
        """The number of operations of `kernel_mm` for so many columns of Y, from shapes alone."""
        return cost.product_operations(self._counted(), columns)

    def _counted(self) -> list[Counted]:
        shapes = self.objective.block_shapes(self.theta)
        counts = self.objective.row_counts(self.theta)
        return [Counted(shapes[name], counts[name]) for name in counts]

    def gramian(self) -> Float[Array, "p p"]:
        """Jᵀ J."""
        return self.on_rows(lambda rows: kernel.gramian(rows, self.objective.plan))

    def on_rows(self, work: Callable[..., Result], *others: PyTree) -> Result:
        """The result of work on the rows of all conditions, held or streamed, and on other arrays.

        On several devices each works on its rows, and all of them have the same result.
        """
        shared = (REPLICATED,) * len(others)

        def streamed(objective: "LeastSquares", theta: Theta, *others: PyTree) -> Result:
            rows = [objective.stream(name, theta) for name in objective.conditions]
            return work(rows, *others)

        if self.jacobian is None:
            everywhere = self._on_each_device(
                streamed, (REPLICATED, REPLICATED, *shared), REPLICATED
            )
            return everywhere(self.objective, self.theta, *others)
        counts = self.objective.row_counts(self.theta).values()

        def held(jacobian: tuple[RowBlock, ...], *others: PyTree) -> Result:
            rows = [Rows.held(blocks, n) for blocks, n in zip(jacobian, counts, strict=True)]
            return work(rows, *others)

        return self._on_each_device(held, (BY_ROWS, *shared), REPLICATED)(self.jacobian, *others)

    def _on_each_device(
        self,
        function: Callable[..., Result],
        in_specs: Sequence[PartitionSpec],
        out_specs: PartitionSpec,
    ) -> Callable[..., Result]:
        return on_each_device(function, self.objective.plan, in_specs, out_specs)

    def _sum_over_devices(self, tree: Theta) -> Theta:
        return tree if self.objective.plan.mesh is None else jax.lax.psum(tree, DEVICES)
