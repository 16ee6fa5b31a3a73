"""The compiled part of training: many steps in one call, only finite ones taken."""

from functools import partial
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from ..least_squares.objective import LeastSquares
from ..models.theta import Theta
from ..optimizers.base import Optimizer, StepInfo
from ..parallel.devices import replicate

SMALL = 100_000  # numbers of an array
MOST_REJECTED = 10  # steps in a row, after which a run is stuck: other points do not help
Tree = TypeVar("Tree")


class Events(NamedTuple):
    """How often a step failed since the start of the run, and what became of it."""

    rejected: Int[Array, ""]  # steps not taken: a loss or parameters that are not finite
    rejected_in_a_row: Int[Array, ""]  # up to now: 0 after a step that was taken
    recovered: Int[Array, ""]  # steps taken only after their system was damped more


class TrainState(NamedTuple):
    """All that changes during training.

    - `theta`: the parameters.
    - `optimizer`: the optimizer's own state.
    - `key`: the random key of the run, which stays; batches are functions of it and of the step.
    - `step`: the steps taken so far, rejected ones included.
    - `events`: how many steps were rejected, and how many were saved by more damping.
    """

    theta: Theta
    optimizer: PyTree
    key: PRNGKeyArray
    step: Int[Array, ""]
    events: Events


class Batches(eqx.Module):
    """A problem whose points are drawn anew after so many steps."""

    objective: LeastSquares
    steps_per_batch: Int[Array, ""] = eqx.field(converter=jnp.asarray, default=1)

    def at(self, state: TrainState) -> tuple[LeastSquares, PRNGKeyArray]:
        """The batch of the coming step, and a key for the optimizer.

        Both are functions of the state, so a run that is resumed goes on as if never stopped.
        """
        is_held = self.steps_per_batch > 1
        rejected = jnp.where(is_held, state.events.rejected, 0)  # another batch after each of them
        batch_key = jax.random.fold_in(state.key, state.step // self.steps_per_batch)
        batch_key = jax.lax.cond(
            rejected > 0, lambda: jax.random.fold_in(batch_key, rejected), lambda: batch_key
        )
        sample_key, _ = jax.random.split(batch_key)
        _, step_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        return self.objective.resample(sample_key, state.theta), step_key


class Work(NamedTuple):
    """What the steps of one call share, and how many they are."""

    optimizer: Optimizer
    batches: Batches
    steps: Int[Array, ""]


class Outcome(NamedTuple):
    """How the steps of one call went."""

    info: StepInfo  # of the last one
    taken: Int[Array, ""]
    is_stuck: Bool[Array, ""]  # too many steps in a row were rejected


@eqx.filter_jit  # one program where there would be several, each compiled before a run starts
def start(optimizer: Optimizer, theta: Theta, key: PRNGKeyArray) -> TrainState:
    """The state before the first step, in arrays of its own."""
    zero = jnp.array(0)
    return copied(TrainState(theta, optimizer.init(theta), key, zero, Events(zero, zero, zero)))


@eqx.filter_jit(donate="all-except-first")
def advance(work: Work, state: TrainState) -> tuple[TrainState, Outcome]:
    """Take a number of steps; the new state reuses the memory of the old one, which is lost.

    A step whose loss or result is not finite is rejected: the parameters stay as they are, and the
    next step may succeed on other points.
    """
    optimizer, batches, steps = work

    @partial(jax.jit, inline=True)  # traced once, for its shapes and for the loop
    def take_step(state: TrainState) -> tuple[TrainState, StepInfo]:
        batch, step_key = batches.at(state)
        theta, optimizer_state, info = optimizer.step(
            batch, state.theta, state.optimizer, key=step_key
        )
        theta, optimizer_state = replicate((theta, optimizer_state), batch.plan)
        is_sound = jnp.isfinite(info.loss) & all_finite((theta, optimizer_state))
        theta, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(is_sound, new, old),
            (theta, optimizer_state),
            (state.theta, optimizer.skip(state.optimizer)),
        )
        rejected, in_a_row, recovered = state.events
        events = Events(
            rejected + ~is_sound,
            jnp.where(is_sound, 0, in_a_row + 1),
            recovered + (is_sound & info.is_recovered),
        )
        return TrainState(theta, optimizer_state, state.key, state.step + 1, events), info

    def is_stuck(state: TrainState) -> Bool[Array, ""]:
        return state.events.rejected_in_a_row >= MOST_REJECTED

    def may_go_on(carry: tuple[TrainState, Outcome]) -> Bool[Array, ""]:
        _, outcome = carry
        return (outcome.taken < steps) & ~outcome.is_stuck

    def body(carry: tuple[TrainState, Outcome]) -> tuple[TrainState, Outcome]:
        state, outcome = carry
        state, info = take_step(state)
        return state, Outcome(info, outcome.taken + 1, is_stuck(state))

    _, shape = jax.eval_shape(take_step, state)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    unstarted = Outcome(nothing, jnp.array(0), is_stuck(state))
    return jax.lax.while_loop(may_go_on, body, (state, unstarted))


@jax.jit
def copied(tree: Tree) -> Tree:
    """The same values in arrays of their own, since steps reuse the memory of a state.

    The copies have JAX's strong types, as what steps return: with the weak type of an array made
    from a Python number the first call would need a program of its own.
    """
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=leaf.dtype, copy=True), tree)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers are finite.

    Small arrays are looked at together: compilers would repeat the end of a step for each.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    small = [leaf.ravel() for leaf in leaves if leaf.size <= SMALL]
    parts = [leaf for leaf in leaves if leaf.size > SMALL]
    parts += [jnp.concatenate(small)] if small else []
    return jnp.all(jnp.array([jnp.isfinite(part).all() for part in parts]))
