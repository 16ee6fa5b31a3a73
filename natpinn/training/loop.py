"""The one training loop, for every optimizer."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PRNGKeyArray

from .. import memory
from ..checks import whole
from ..errors import InputError
from ..least_squares.objective import LeastSquares
from ..models.theta import Theta, parameter_count
from ..optimizers.base import Optimizer
from ..parallel.devices import place
from ..parallel.threads import lapack_threads_for, limit_lapack
from ..programs import compile_together
from .cache import use_compilation_cache
from .divergence import explain_divergence
from .evaluation import Evaluation, measure, metrics
from .ledger import Ledger
from .limits import Limits
from .progress import Callback, Progress
from .result import TrainResult
from .signals import Interrupts
from .snapshot import Snapshot, begin, owned
from .spectrum import Tracking
from .steps import Batches, Outcome, TrainState, Work, advance, copied

Number = TypeVar("Number", bool, int, float)
SECONDS_PER_CALL = 0.25  # Python costs little beside it, and progress is seen four times a second
SETTLING = (0.25, 100, 2.0)  # of the steps so far, steps, and seconds: the most after an early end


def train(
    objective: LeastSquares,
    theta: Theta,
    optimizer: Optimizer,
    evaluation: Evaluation,
    *,
    key: PRNGKeyArray,
    steps: int | None = None,
    budget: float | None = None,
    steps_per_batch: int = 1,
    callbacks: Sequence[Callback] = (),
    resume: Snapshot | None = None,
    history: Sequence[Mapping[str, float]] = (),
    tracking: Tracking | None = None,
    seconds_per_call: float = SECONDS_PER_CALL,
) -> TrainResult:
    """Train until `steps` are taken, `budget` seconds are spent or a callback returns True.

    **Arguments:**

    - `objective`: what a step minimises and, by its plan, how a step is computed. Its own points
      are not trained on: the domains sample every batch, the first too.
    - `theta`: the parameters to start from, as `problem.objective` returns them; all finite.
    - `optimizer`: what takes a step, as `natpinn.spring()`.
    - `evaluation`: θ ↦ a dictionary of metrics, as `problem.evaluation` returns it. Its `criterion`
      names the metric that the best parameters make smallest.
    - `key`: of all randomness in training. A batch is a function of it and of the step, so a run
      can be repeated.
    - `steps`: how many steps at most. Default: no limit.
    - `budget`: seconds of training at most, without compilation, evaluation and tracking. Default:
      no limit. One of `steps` and `budget` must be given; of both, the first reached ends the run.
    - `steps_per_batch`: steps before points are drawn anew. Default: 1, so that every step has
      points of its own.
    - `callbacks`: functions of a Progress, called after every compiled call; where one returns
      True, the run is evaluated and ends. Default: none.
    - `resume`: the snapshot of a run that goes on, as `result.snapshot`. It takes the place of
      `theta` and `key`, and `steps` and `budget` count from the start of that run. Default: none.
    - `history`: the records that this run has so far; new ones are added to a copy. Default: none.
    - `tracking`: what of the kernel's spectrum is recorded, and at which evaluations; it needs an
      optimizer with a damping. Default: nothing.
    - `seconds_per_call`: how long a compiled call of many steps may take; callbacks and signals
      wait for its end. It changes no parameters, except where a step depends on the number of steps
      that a budget allows, as with `auto`. Default: 0.25.

    **Returns:** a `TrainResult`: `state` after the last step, `best_theta`, `history` with one
    record for each evaluation (each 5 % later than the one before, and at the end), `status`
    "finished", "interrupted" (by Ctrl-C or SIGTERM) or "diverged", `message`, which explains the
    last two, and `snapshot`, from which another call goes on.

    **Raises:** `InputError` where neither `steps` nor `budget` is given, for a number out of its
    range, for parameters that are not finite, and where an optimizer without a damping is to be
    tracked.

        import jax
        import natpinn

        key = jax.random.key(0)
        problem = natpinn.problems.get("poisson_2d")
        model = problem.default_model(key)
        objective, theta = problem.objective(model, problem.sample(key))
        evaluation = problem.evaluation(model, key)
        result = natpinn.train(objective, theta, natpinn.spring(), evaluation, key=key, steps=20)
        print(result.history[-1]["relative_l2"])
    """
    limits = Limits(steps, budget)
    check_callbacks(callbacks)
    _check_start(theta, optimizer, tracking)
    use_compilation_cache()
    snapshot = begin(optimizer, theta, key) if resume is None else owned(resume)
    batches = Batches(objective, whole(steps_per_batch, "steps_per_batch"))
    ledger = Ledger(place(snapshot, objective.plan), history, evaluation.criterion)
    optimizer, batches, evaluation = place((optimizer, batches, evaluation), objective.plan)
    run = _Run(optimizer, batches, evaluation, limits, tracking, callbacks, seconds_per_call)

    with Interrupts() as interrupts, limit_lapack(_threads(objective, theta, optimizer)):
        started = time.perf_counter()
        run.compile(ledger)
        done = limits.is_over(ledger.step, ledger.seconds)  # killed while it wrote its results
        evaluated = not ledger.history or (done and ledger.history[-1]["step"] < ledger.step)
        if evaluated:
            run.evaluate(ledger)
        ledger.compile_seconds += time.perf_counter() - started
        memory.release()
        done = run.report(ledger, evaluated, interrupts) or done

        while not done:
            count = run.steps_per_call(ledger)
            started = time.perf_counter()
            state, outcome = run.take(count, ledger)
            ledger.book(state, outcome, _as_first_process(time.perf_counter() - started))

            is_out = limits.is_over(ledger.step, ledger.seconds)
            if bool(outcome.is_stuck) or (is_out and not ledger.has_moved):
                ledger.end("diverged", explain_divergence(batches, ledger.state, outcome))
            elif not is_out and _as_first_process(interrupts.received):
                ledger.end("interrupted", f"stopped by a signal after {ledger.step} steps")
            done = is_out or ledger.status != "finished"

            evaluated = done or ledger.step >= ledger.next_evaluation
            if evaluated:
                run.evaluate(ledger, outcome)
            if is_out and ledger.is_lost:
                ledger.end("diverged", explain_divergence(batches, ledger.state, outcome))

            done = run.report(ledger, evaluated, interrupts) or done
            if done and not evaluated:  # a callback ends the run here
                run.evaluate(ledger, outcome)
                run.report(ledger, True, interrupts)
        if ledger.status != "diverged" and not limits.is_over(ledger.step, ledger.seconds):
            run.settle(ledger)
    return ledger.result()


def check_callbacks(callbacks: object) -> None:
    """Check that callbacks are functions in a list."""
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError(
            f"callbacks are functions of a Progress in a list, as [print], got {callbacks!r}"
        )


def check_tracking(tracking: Tracking | None, optimizer: Optimizer) -> None:
    if tracking is not None and not hasattr(optimizer, "damping"):
        raise InputError("the spectrum is tracked for optimizers with a damping only, as engd_w")


def _check_start(theta: Theta, optimizer: Optimizer, tracking: Tracking | None) -> None:
    check_tracking(tracking, optimizer)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(theta)):
        raise InputError(
            "the model's parameters are not finite before training: initialize it anew"
        )


def _threads(objective: LeastSquares, theta: Theta, optimizer: Optimizer) -> int | None:
    """How many threads LAPACK gets: as planned, or else as many as the solve is worth."""
    if objective.plan.lapack_threads is not None:
        return objective.plan.lapack_threads
    rows, parameters = sum(objective.row_counts(theta).values()), parameter_count(theta)
    return lapack_threads_for(optimizer.footprint(rows, parameters).side(rows, parameters))


@dataclass(frozen=True)
class _Run:
    """What stays the same from the first step of a run to its last; the ledger has the rest."""

    optimizer: Optimizer
    batches: Batches
    evaluation: Evaluation
    limits: Limits
    tracking: Tracking | None
    callbacks: Sequence[Callback]
    seconds_per_call: float

    def steps_per_call(self, ledger: Ledger) -> int:
        """How many steps the next call takes: up to an evaluation, a limit or its time."""
        return self.limits.steps_per_call(
            ledger.step,
            ledger.seconds,
            ledger.seconds_per_step,
            until=ledger.next_evaluation,
            within=self.seconds_per_call,
        )

    def compile(self, ledger: Ledger) -> None:
        """Compile what every run needs; programs are loaded where the user's cache has them."""
        compile_together(
            (advance, (self._work(0, ledger), ledger.state)),
            (metrics, (self.batches, self.evaluation, ledger.state)),
        )
        ledger.state, _ = self.take(0, ledger)

    def take(self, count: int, ledger: Ledger) -> tuple[TrainState, Outcome]:
        """The state after so many more steps; it reuses the memory of the ledger's state."""
        return jax.block_until_ready(advance(self._work(count, ledger), ledger.state))

    def evaluate(self, ledger: Ledger, outcome: Outcome | None = None) -> None:
        """Record the metrics and, after steps, the details of the last one."""
        found = measure(self.batches, self.evaluation, ledger.state)
        if outcome is not None:
            found |= {name: float(value) for name, value in outcome.info.details.items()}
            found["rejected_steps"] = int(ledger.state.events.rejected)
            found["recovered_steps"] = int(ledger.state.events.recovered)
            if self.tracking is not None and len(ledger.history) % self.tracking.every == 0:
                started = time.perf_counter()
                found |= self.tracking(self.batches, ledger.state, found["damping"])
                ledger.tracking_seconds += time.perf_counter() - started
        ledger.record(found)

    def settle(self, ledger: Ledger) -> None:
        """Take last steps aside where a run has been stopped before the end that it was made for.

        What they reach may be returned. A run that is resumed goes on from before them.
        """
        share, most, seconds = SETTLING
        count = int(min(share * ledger.step, most, seconds / ledger.seconds_per_step))
        if count == 0 or self.optimizer.until(1.0) is self.optimizer:
            return
        work = self._work_until(ledger.step + count, count)
        state, _ = advance(work, copied(ledger.state))
        ledger.put_aside(state, measure(self.batches, self.evaluation, state))

    def _work(self, count: int, ledger: Ledger) -> Work:
        return self._work_until(self.limits.horizon(ledger.step, ledger.seconds), count)

    def _work_until(self, horizon: float, count: int) -> Work:
        timed = self.optimizer.until(horizon)
        timed, counted = place((timed, jnp.array(count)), self.batches.objective.plan)
        return Work(timed, self.batches, counted)

    def report(self, ledger: Ledger, evaluated: bool, interrupts: Interrupts) -> bool:
        """Call the callbacks; whether one of them, or Ctrl-C during one, ends the run."""
        progress = Progress(
            step=ledger.step,
            seconds=ledger.seconds,
            metrics=ledger.history[-1],
            evaluated=evaluated,
            criterion=ledger.criterion,
            steps=self.limits.steps,
            budget=self.limits.budget,
            snapshot=ledger.snapshot(),
        )
        try:
            answers = [callback(progress) for callback in self.callbacks]  # all, then decide
        except KeyboardInterrupt:
            if interrupts.received:
                raise  # the second one
            ledger.end("interrupted", f"stopped after {ledger.step} steps")
            answers = [True]
        return _as_first_process(any(answers))


def _as_first_process(value: Number) -> Number:
    """The value that the first of several processes has: clocks differ, and steps must not."""
    if jax.process_count() == 1:
        return value
    return type(value)(multihost_utils.broadcast_one_to_all(np.asarray(value)))
