"""A PDE with its conditions and, where it is known, its solution."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import memory
from ..checks import require_float64, whole
from ..domains.base import Domain, Points, coordinates, enclosing_box
from ..domains.sampling import Held, Sampler, Uniform
from ..domains.spacetime import TimeSpace
from ..equations.condition import Condition
from ..equations.operators import Field
from ..errors import InputError, unknown
from ..least_squares.objective import LeastSquares, sample
from ..models.embeddings import Scaled
from ..models.mlp import MLP, check_widths
from ..models.theta import Theta, as_model, split
from .evaluation import Evaluation
from .names import Names, label

DEFAULT_WIDTHS = (32, 32, 32)


class Problem(eqx.Module):
    """Conditions that a function must satisfy.

    The first condition whose domain has a volume is the equation itself: errors are measured, and
    pictures drawn, on its domain, on `evaluation_points` points or else ten times its batch.
    `widths` are the hidden layers of the network that is used when none is given, and `outputs` how
    many values it has: without them as many as the solution, or one number. It is told where
    a point is in the box around all conditions, so that its inputs have no units; with
    `scaled=False` it gets the point itself. `names` are what coordinates and values are called in
    pictures and messages, as in "t x -> u v": by default the names of the domain, x0, x1, …, and u,
    or u0, u1, …
    """

    conditions: OrderedDict[str, Condition]
    solution: Field | None
    name: str = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    outputs: int | None = eqx.field(static=True)
    names: Names = eqx.field(static=True)
    scaled: bool = eqx.field(static=True)
    evaluation_points: int | None = eqx.field(static=True)
    is_catalogued: bool = eqx.field(static=True)  # its name and sizes say all about it

    def __init__(
        self,
        conditions: Mapping[str, Condition],
        solution: Field | None = None,
        *,
        name: str = "custom",
        widths: tuple[int, ...] = DEFAULT_WIDTHS,
        outputs: int | None = None,
        names: str | Names | None = None,
        scaled: bool = True,
        evaluation_points: int | None = None,
        is_catalogued: bool = False,
    ):
        if not isinstance(conditions, Mapping) or not conditions:
            raise InputError(
                "a problem needs a dictionary of at least one condition, as in "
                "{'interior': Condition(residual, domain)}"
            )
        if solution is not None and not callable(solution):
            raise InputError(f"a solution is a function of one point, got {solution!r}")
        for key, condition in conditions.items():
            if not (isinstance(key, str) and key.isidentifier()):
                raise InputError(
                    f"a condition's name must be a word of letters, digits and _, got {key!r}: "
                    f"settings and records use it"
                )
            if not isinstance(condition, Condition):
                raise InputError(f"condition {key!r} must be a Condition, got {condition!r}")
        dimensions = {key: c.domain.dimension for key, c in conditions.items()}
        if len(set(dimensions.values())) != 1:
            raise InputError(f"all conditions must have points of one dimension, got {dimensions}")
        self.conditions = OrderedDict(conditions)
        self.solution = solution
        self.name = name
        self.widths = check_widths(widths)
        dimension = self.domain.dimension
        self.names = names if isinstance(names, Names) else Names.parse(names, dimension)
        self.outputs = None if outputs is None else whole(outputs, "outputs")
        if self.names.values is not None and self.outputs not in (None, len(self.names.values)):
            raise InputError(
                f"outputs = {self.outputs}, and names has {len(self.names.values)} values: "
                f"{', '.join(self.names.values)}"
            )
        self.scaled = scaled
        if evaluation_points is not None:
            evaluation_points = whole(evaluation_points, "evaluation_points")
        self.evaluation_points = evaluation_points
        self.is_catalogued = is_catalogued

    @property
    def domain(self) -> Domain:
        """The domain of the equation."""
        return self._equation.domain

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """What the coordinates are called."""
        return self.names.coordinates or self.domain.names

    @property
    def label(self) -> str:
        """The name with the dimension that the problem has: heat_4d in three is heat_3d."""
        if not self.is_catalogued:
            return self.name
        is_timed = isinstance(self.domain, TimeSpace)
        return label(self.name, self.domain.dimension - is_timed)

    @property
    def _equation(self) -> Condition:
        conditions = list(self.conditions.values())
        return next((c for c in conditions if c.domain.has_volume), conditions[0])

    def with_points(self, points: Mapping[str, int | None]) -> "Problem":
        """The same problem with other numbers of points per batch; None: what is proposed."""
        for name in points:
            if name not in self.conditions:
                raise unknown("condition", name, self.conditions)
        sized = {
            name: c.with_points(points[name]) if name in points else c
            for name, c in self.conditions.items()
        }
        return self._with_conditions(sized, is_catalogued=self.is_catalogued)

    def with_sampler(self, sampler: Sampler) -> "Problem":
        """The same problem with its points drawn another way."""
        return self._with_conditions(
            {name: c.with_sampler(sampler) for name, c in self.conditions.items()}
        )

    def with_held_points(self, seed: int = 0) -> "Problem":
        """The same problem on the same points at every step."""
        held = {
            name: c.with_sampler(Held(c.sampler.fresh, seed + i))
            for i, (name, c) in enumerate(self.conditions.items())
        }
        return self._with_conditions(held)

    def with_evaluation_points(self, evaluation_points: int) -> "Problem":
        """The same problem with its error measured on another number of points."""
        return self._with_conditions(self.conditions, evaluation_points, self.is_catalogued)

    def default_model(
        self,
        key: PRNGKeyArray,
        widths: tuple[int, ...] | None = None,
        activation: Callable[[Array], Array] = jnp.tanh,
        scaled: bool | None = None,
    ) -> MLP:
        """A network with as many outputs as were asked for, or as the solution has, or one."""
        shape = () if self.solution is None else self._solution_shape()
        named = len(self.names.values or ())
        outputs = self.outputs or (shape[0] if shape else named if named > 1 else "scalar")
        is_scaled = self.scaled if scaled is None else scaled
        box = enclosing_box(c.domain for c in self.conditions.values())
        return MLP(
            self.domain.dimension,
            self.widths if widths is None else widths,
            outputs,
            key=key,
            activation=activation,
            embedding=Scaled(*box) if is_scaled else None,
        )

    def check(self, model: Any) -> None:
        """The model, the conditions and the solution fit each other; nothing is computed."""
        for name, condition in self.conditions.items():
            condition.check(name, model)
        if self.names.values is not None:
            values = eqx.filter_eval_shape(model, self._point()).size
            if len(self.names.values) != values:
                raise InputError(
                    f"the model has {values} {'value' if values == 1 else 'values'}, and names "
                    f"has {len(self.names.values)}: {', '.join(self.names.values)}"
                )
        if self.solution is not None:
            found = eqx.filter_eval_shape(model, self._point()).shape
            wanted = self._solution_shape()
            if found != wanted:
                raise InputError(
                    f"the solution has values of shape {wanted}, the model of shape {found}: they "
                    f"must agree for the error to be measured"
                )

    def objective(
        self, model: Any, points: dict[str, Points] | None = None
    ) -> tuple[LeastSquares, Theta]:
        """The least-squares problem on the given points, one entry per condition, and θ.

        Without points they are zeros, for an objective that is resampled before it is used.
        """
        model = as_model(model)
        if points is None:
            points = self._blank_points()
        if set(points) != set(self.conditions):
            raise InputError(
                f"points must be given for {list(self.conditions)}, got {list(points)}"
            )
        require_float64(points, "points")
        self.check(model)
        theta, frozen = split(model)
        names = self.coordinate_names
        return LeastSquares(self.conditions, points, frozen, names=names), theta

    def sample(self, key: PRNGKeyArray) -> dict[str, Points]:
        """A batch of points for every condition."""
        self._require_memory()
        return sample(self.conditions, key)

    def _blank_points(self) -> dict[str, Points]:
        """Zeros in place of a batch; nothing is compiled."""
        self._require_memory()
        shapes = jax.eval_shape(lambda: sample(self.conditions, jax.random.key(0)))
        return jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), shapes)

    def _require_memory(self) -> None:
        """The points of a batch fit."""
        for name, condition in self.conditions.items():
            memory.require(
                8 * condition.points * condition.domain.dimension,
                f"{condition.points:,} points of {name!r}",
                f"set fewer with points.{name}",
            )

    def evaluation(self, model: Any, key: PRNGKeyArray) -> "Evaluation":
        """What is measured of a model during training, on points that stay the same."""
        n = self.evaluation_points
        n = 10 * self._equation.points if n is None else n
        n = min(n, self.domain.size or n)  # of measured data there are no more
        memory.require(
            8 * n * self.domain.dimension,
            f"{n:,} evaluation points",
            "set fewer with evaluation.points",
        )
        points, reference = _draw_evaluation(self.domain, self.solution, key, n)
        if reference is None:
            fresh = {name: c.with_sampler(c.sampler.fresh) for name, c in self.conditions.items()}
            batch = sample(OrderedDict(fresh), jax.random.split(key)[1])
            return Evaluation(self.objective(model, batch)[0], points, None)
        if not bool(np.isfinite(reference).all()):
            raise InputError(
                "the solution is NaN or infinite at some points of the domain: no error can be "
                "measured against it; mend it, or leave it out to go by the validation loss"
            )
        return Evaluation(self.objective(model)[0], points, reference)

    def _solution_shape(self) -> tuple[int, ...]:
        assert self.solution is not None
        try:
            values = jax.eval_shape(self.solution, self._point())
        except Exception as error:  # whatever the user's own function raises
            reason = str(error).split("\n")[0]
            raise InputError(
                f"the solution cannot be evaluated at a point: {type(error).__name__}: {reason}"
            ) from error
        if not isinstance(values, jax.ShapeDtypeStruct) or len(values.shape) > 1:
            raise InputError(
                f"a solution must return one array of shape () or (m,) at one point, got {values}: "
                f"stack its values with jnp.stack"
            )
        return values.shape

    def _point(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.domain.dimension,), jnp.float64)

    def _with_conditions(
        self,
        conditions: Mapping[str, Condition],
        evaluation_points: int | None = None,
        is_catalogued: bool = False,
    ) -> "Problem":
        return Problem(
            conditions,
            self.solution,
            name=self.name,
            widths=self.widths,
            outputs=self.outputs,
            names=self.names,
            scaled=self.scaled,
            evaluation_points=(
                self.evaluation_points if evaluation_points is None else evaluation_points
            ),
            is_catalogued=is_catalogued,
        )


@eqx.filter_jit  # one program where there would be dozens
def _draw_evaluation(
    domain: Domain, solution: Field | None, key: PRNGKeyArray, n: int
) -> tuple[Float[Array, "n d"], Float[Array, "n ..."] | None]:
    """Points to measure errors at, and the solution there."""
    points_key, _ = jax.random.split(key)
    points = coordinates(domain.sample(points_key, n, Uniform()))
    return points, None if solution is None else jax.vmap(solution)(points)
