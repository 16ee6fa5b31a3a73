"""A PDE with its conditions and, where it is known, its solution."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import memory
from ..checks import require_floats, whole
from ..domains.base import Domain, Points, coordinates, enclosing_box
from ..domains.sampling import Focused, Held, Sampler, Uniform
from ..domains.spacetime import TimeSpace
from ..equations.condition import Condition
from ..equations.operators import Field
from ..errors import InputError, unknown
from ..least_squares.objective import LeastSquares, sample
from ..models.embeddings import Scaled
from ..models.mlp import MLP, check_widths, tanh_sin
from ..models.theta import Theta, as_model, split
from ..precision import real
from .evaluation import Evaluation
from .names import Names, label

DEFAULT_WIDTHS = (32, 32, 32)
HELD_OUT = 4  # times the points of a batch: few of them see a front


class Problem(eqx.Module):
    """Conditions that an unknown function satisfies and, where it is known, the solution.

    The first condition whose domain has a volume is the equation itself: errors are measured, and
    pictures drawn, on its domain.

    **Arguments:**

    - `conditions`: a dictionary of at least one `Condition`, all with points of one dimension. Its
      names are used in settings, records and messages.
    - `solution`: a function of one point with the exact values, of which the L2 error of a run is
      measured. Default: none, and runs go by their validation loss.
    - `name`: what run folders and pictures call the problem. Default: `"custom"`.
    - `widths`: the hidden layers of the network that is used when none is given. Default: three,
      as wide as a step is worth on this machine in the run's time.
    - `outputs`: how many values that network has. Default: as many as the solution, or one number.
    - `names`: what coordinates and values are called in pictures and messages, as `"t x -> u v"`.
      Default: the names of the domain, x0, x1, …, and u, or u0, u1, …
    - `scaled`: whether that network sees where a point is in the box around all conditions, so that
      its inputs have no units, or else the point itself. Default: True.
    - `embedding`: what that network does with a point first in place of this, as
      `Periodic((0, 2.0))` for a period of 2 in the second coordinate. Default: none.
    - `evaluation_points`: how many points errors are measured on. Default: ten times the batch of
      the equation.
    - `is_catalogued`: whether name and sizes say all about the problem; for those of the catalogue.
      Default: False.

    **Raises:** `InputError` for conditions that do not fit each other, and for names and numbers
    that cannot be used.

        import jax.numpy as jnp
        from natpinn import Box, Condition, Problem, laplacian

        square = Box.unit(2)

        def exact(x):
            return jnp.sin(jnp.pi * x[0]) * jnp.sin(jnp.pi * x[1])

        def equation(u, x):
            return laplacian(u)(x) + 2 * jnp.pi**2 * exact(x)

        problem = Problem(
            {
                "inside": Condition(equation, square),
                "edge": Condition(lambda u, x: u(x), square.boundary),
            },
            solution=exact,
        )
    """

    conditions: OrderedDict[str, Condition]
    solution: Field | None
    name: str = eqx.field(static=True)
    widths: tuple[int, ...] | None = eqx.field(static=True)
    outputs: int | None = eqx.field(static=True)
    names: Names = eqx.field(static=True)
    scaled: bool = eqx.field(static=True)
    embedding: Callable[[Array], Array] | None
    evaluation_points: int | None = eqx.field(static=True)
    is_catalogued: bool = eqx.field(static=True)  # its name and sizes determine it

    def __init__(
        self,
        conditions: Mapping[str, Condition],
        solution: Field | None = None,
        *,
        name: str = "custom",
        widths: tuple[int, ...] | None = None,
        outputs: int | None = None,
        names: str | Names | None = None,
        scaled: bool = True,
        embedding: Callable[[Array], Array] | None = None,
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
        self.widths = None if widths is None else check_widths(widths)
        dimension = self.domain.dimension
        self.names = names if isinstance(names, Names) else Names.parse(names, dimension)
        self.outputs = None if outputs is None else whole(outputs, "outputs")
        if self.names.values is not None and self.outputs not in (None, len(self.names.values)):
            raise InputError(
                f"outputs = {self.outputs}, and names has {len(self.names.values)} values: "
                f"{', '.join(self.names.values)}"
            )
        if embedding is not None and not callable(embedding):
            raise InputError(
                f"an embedding is a function of a point, as Periodic((0, 2.0)), got {embedding!r}"
            )
        self.embedding = embedding
        self.scaled = scaled and embedding is None
        if evaluation_points is not None:
            evaluation_points = whole(evaluation_points, "evaluation_points")
        self.evaluation_points = evaluation_points
        self.is_catalogued = is_catalogued

    @property
    def domain(self) -> Domain:
        """The domain of the equation: of the first condition that has a volume."""
        return self._equation.domain

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """What the coordinates are called in pictures and messages."""
        return self.names.coordinates or self.domain.names

    @property
    def label(self) -> str:
        """The name in the dimension that the problem has: heat_4d in three is heat_3d."""
        if not self.is_catalogued:
            return self.name
        is_timed = isinstance(self.domain, TimeSpace)
        return label(self.name, self.domain.dimension - is_timed)

    @property
    def _equation(self) -> Condition:
        conditions = list(self.conditions.values())
        return next((c for c in conditions if c.domain.has_volume), conditions[0])

    def with_points(self, points: Mapping[str, int | None]) -> "Problem":
        """The same problem with other numbers of points in a batch.

        **Arguments:** `points`, a dictionary of numbers by conditions; None stands for as many as
        are proposed for the model. Other conditions keep theirs.

        **Returns:** the new `Problem`.

        **Raises:** `InputError` for the name of no condition, and for a number that is not whole.

            import natpinn

            problem = natpinn.problems.get("poisson_2d").with_points({"interior": 1000})
        """
        for name in points:
            if name not in self.conditions:
                raise unknown("condition", name, self.conditions)
        sized = {
            name: c.with_points(points[name]) if name in points else c
            for name, c in self.conditions.items()
        }
        return self._with_conditions(sized, is_catalogued=self.is_catalogued)

    def with_sampler(self, sampler: Sampler) -> "Problem":
        """The same problem with the points of all conditions drawn another way.

        **Arguments:** `sampler`, such as `Sobol()`.

        **Returns:** the new `Problem`.

            import natpinn

            problem = natpinn.problems.get("poisson_2d").with_sampler(natpinn.Sobol())
        """
        return self._with_conditions(
            {name: c.with_sampler(sampler) for name, c in self.conditions.items()}
        )

    def with_held_points(self, seed: int = 0) -> "Problem":
        """The same problem on the same points at every step.

        **Arguments:** `seed`, another one holds other points. Default: 0.

        **Returns:** the new `Problem`; its errors are still measured on points of their own.

            import natpinn

            problem = natpinn.problems.get("poisson_2d").with_held_points(seed=1)
        """
        held = {
            name: c.with_sampler(Held(c.sampler.fresh, seed + i))
            for i, (name, c) in enumerate(self.conditions.items())
        }
        return self._with_conditions(held)

    def focused(self, candidates: int) -> "Problem":
        """The same problem with points that follow the residual, where they are new at each step.

        **Arguments:** `candidates`, how many are drawn for each point, as in `Focused`.

        **Returns:** the new `Problem`. Conditions with measured data, held points or a `Focused`
        sampler of their own stay as they are.

        **Raises:** `InputError` for less than two candidates.

            import natpinn

            problem = natpinn.problems.get("poisson_2d").focused(16)
        """
        followed = {
            name: c.with_sampler(Focused(c.sampler, candidates))
            for name, c in self.conditions.items()
            if c.domain.size is None and not isinstance(c.sampler, Held | Focused)
        }
        return self._with_conditions(
            {**self.conditions, **followed}, is_catalogued=self.is_catalogued
        )

    @property
    def is_focused(self) -> bool:
        """Whether the points of a condition follow the residual."""
        return any(isinstance(c.sampler, Focused) for c in self.conditions.values())

    def with_evaluation_points(self, evaluation_points: int) -> "Problem":
        """The same problem with its error measured on another number of points.

        **Arguments:** `evaluation_points`, how many.

        **Returns:** the new `Problem`.

            import natpinn

            problem = natpinn.problems.get("poisson_2d").with_evaluation_points(10_000)
        """
        return self._with_conditions(self.conditions, evaluation_points, self.is_catalogued)

    def default_model(
        self,
        key: PRNGKeyArray,
        widths: tuple[int, ...] | None = None,
        activation: Callable[[Array], Array] | None = None,
        scaled: bool | None = None,
    ) -> MLP:
        """The network that is used when none is given.

        It has as many outputs as were asked for, or as the solution has, or one number.

        **Arguments:**

        - `key`: a random key of JAX, of which the first weights are a function.
        - `widths`: of the hidden layers. Default: those of the problem, or three of 32.
        - `activation`: the function between layers. Default: tanh where the problem has widths,
          else `natpinn.tanh_sin`.
        - `scaled`: whether the network sees where a point is in the box around all conditions.
          Default: as the problem says.

        **Returns:** an `MLP`.

        **Raises:** `InputError` where it would be scaled beside an embedding of the problem.

            import jax
            import natpinn

            problem = natpinn.problems.get("poisson_2d")
            net = problem.default_model(jax.random.key(0), widths=(16, 16))
        """
        if widths is None:
            widths = DEFAULT_WIDTHS if self.widths is None else self.widths
        is_scaled = self.scaled if scaled is None else scaled
        embedding = self.embedding
        if is_scaled and embedding is not None:
            raise InputError(
                f"the network of {self.name} has the embedding {embedding!r} already: leave scaled "
                f"at False, or leave the embedding out"
            )
        if is_scaled:
            embedding = Scaled(*enclosing_box(c.domain for c in self.conditions.values()))
        return MLP(
            self.domain.dimension,
            widths,
            self._outputs(),
            key=key,
            activation=self.activation if activation is None else activation,
            embedding=embedding,
        )

    @property
    def activation(self) -> Callable[[Array], Array]:
        """The function between the layers of that network: tanh where its widths are given."""
        return tanh_sin if self.widths is None else jnp.tanh

    @property
    def values(self) -> int:
        """How many values an unknown of the problem has, as far as it is known: 1 otherwise."""
        outputs = self._outputs()
        return 1 if outputs == "scalar" else outputs

    def _outputs(self) -> int | Literal["scalar"]:
        shape = () if self.solution is None else self._solution_shape()
        named = len(self.names.values or ())
        return self.outputs or (shape[0] if shape else named if named > 1 else "scalar")

    def check(self, model: Any) -> None:
        """Check that the model, the conditions and the solution fit each other, from shapes alone.

        **Arguments:** `model`, a function of one point.

        **Raises:** `InputError` where a residual or the solution cannot be evaluated, or the model
        has another number of values than the solution or the names.

            import jax
            import natpinn

            problem = natpinn.problems.get("poisson_2d")
            problem.check(natpinn.MLP(2, [16], key=jax.random.key(0)))
        """
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
        """The least-squares problem on one batch, and the parameters that it is a function of.

        **Arguments:**

        - `model`: an Equinox module, whose float64 JAX arrays are trained, or a pair of parameters
          and a function.
        - `points`: the points of each condition, as `sample` returns them. Default: zeros,
          for an objective that is resampled before it is used.

        **Returns:** a `LeastSquares`, and θ, the arrays of the model that are trained.

        **Raises:** `InputError` where the points are not those of the conditions, or where the
        model has nothing to train or does not fit the problem.

            import jax
            import natpinn

            key = jax.random.key(0)
            problem = natpinn.problems.get("poisson_2d")
            objective, theta = problem.objective(problem.default_model(key), problem.sample(key))
            print(objective.loss(theta))
        """
        model = as_model(model)
        if points is None:
            points = self._blank_points()
        if set(points) != set(self.conditions):
            raise InputError(
                f"points must be given for {list(self.conditions)}, got {list(points)}"
            )
        require_floats(points, "points")
        self.check(model)
        theta, frozen = split(model)
        names = self.coordinate_names
        return LeastSquares(self.conditions, points, frozen, names=names), theta

    def sample(self, key: PRNGKeyArray) -> dict[str, Points]:
        """A batch of points for every condition.

        **Arguments:** `key`, a random key of JAX; the points are a function of it.

        **Returns:** a dictionary of arrays by conditions.

        **Raises:** `InputError` where memory does not suffice.

            import jax
            import natpinn

            points = natpinn.problems.get("poisson_2d").sample(jax.random.key(0))
        """
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
        """What is measured of a model during training, on points that stay the same.

        **Arguments:**

        - `model`: the model, or one of its kind and shape.
        - `key`: a random key of JAX, of which the points are a function.

        **Returns:** a function of θ whose value is a dictionary with `validation_loss`, the loss
        on points of its own (and on the same measured data), and with `l2` and `relative_l2` where
        the solution is known; `natpinn.train` takes it.

        **Raises:** `InputError` where the solution is NaN or infinite at some of the points, and
        where memory does not suffice.

            import jax
            import natpinn

            key = jax.random.key(0)
            problem = natpinn.problems.get("poisson_2d")
            model = problem.default_model(key)
            _, theta = problem.objective(model, problem.sample(key))
            print(problem.evaluation(model, key)(theta)["relative_l2"])
        """
        n = self.evaluation_points
        n = 10 * self._equation.points if n is None else n
        n = min(n, self.domain.size or n)  # of measured data there are no more
        memory.require(
            8 * n * self.domain.dimension,
            f"{n:,} evaluation points",
            "set fewer with evaluation.points",
        )
        fresh = {name: c.with_sampler(c.sampler.fresh) for name, c in self.conditions.items()}
        fresh = {
            name: c if c.domain.size else c.with_points(HELD_OUT * c.points)
            for name, c in fresh.items()
        }
        points, reference, held_out = _draw_evaluation(
            self.domain, self.solution, OrderedDict(fresh), key, n
        )
        if reference is not None and not bool(np.isfinite(reference).all()):
            raise InputError(
                "the solution is NaN or infinite at some points of the domain: no error can be "
                "measured against it; correct it, or leave it out and use the validation loss"
            )
        return Evaluation(self.objective(model, held_out)[0], points, reference)

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
        return jax.ShapeDtypeStruct((self.domain.dimension,), real())

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
            embedding=self.embedding,
            evaluation_points=(
                self.evaluation_points if evaluation_points is None else evaluation_points
            ),
            is_catalogued=is_catalogued,
        )


@eqx.filter_jit  # one program where there would be dozens
def _draw_evaluation(
    domain: Domain,
    solution: Field | None,
    conditions: OrderedDict[str, Condition],
    key: PRNGKeyArray,
    n: int,
) -> tuple[Float[Array, "n d"], Float[Array, "n ..."] | None, dict[str, Points]]:
    """Points to measure errors at, the solution there, and a batch that no step sees."""
    points_key, batch_key = jax.random.split(key)
    points = coordinates(domain.sample(points_key, n, Uniform()))
    reference = None if solution is None else jax.vmap(solution)(points)
    return points, reference, sample(conditions, batch_key)
