"""Seconds until steps are taken, in a process of their own: a part of `natpinn bench start`.

    python -m natpinn.bench.first_steps catalogue poisson_2d BEGUN
    python -m natpinn.bench.first_steps again

BEGUN is when the process was started, by the clock of `time.time`. The results are JSON.
"""

import json
import sys
import time
from collections.abc import Callable


def seconds_until_first_step(solve: Callable[..., object], begun: float) -> float:
    """From `begun`, by the clock of `time.time`, until the first step of a run is taken."""
    found: list[float] = []

    def has_begun(progress) -> bool:
        if progress.step > 0 and not found:
            found.append(time.time() - begun)
        return bool(found)

    solve(steps=20, progress=False, callbacks=[has_begun])
    return found[0]


def of_catalogue(name: str, begun: float) -> float:
    """Of a problem of the catalogue at its own size, from the start of the process."""
    import natpinn

    return seconds_until_first_step(lambda **options: natpinn.solve(name, **options), begun)


def again() -> dict[str, float]:
    """Of the README's problem three times in one process, as where a notebook's cell runs again."""
    import jax.numpy as jnp

    from natpinn import Box, Condition, Problem, laplacian, solve

    def poisson(factor: float) -> Problem:
        """The README's problem, of functions that are new at each call."""
        square = Box([0, 0], [1, 1])

        def exact(x):
            return jnp.sin(jnp.pi * x[0]) * jnp.sin(jnp.pi * x[1])

        def residual(u, x):
            return laplacian(u)(x) + factor * jnp.pi**2 * exact(x)

        return Problem(
            {
                "interior": Condition(residual, square),
                "boundary": Condition(lambda u, x: u(x) - exact(x), square.boundary),
            },
            solution=exact,
        )

    def once(factor: float) -> float:
        return seconds_until_first_step(
            lambda **options: solve(poisson(factor), **options), time.time()
        )

    return {"first": once(2.0), "other_constant": once(2.5), "new_function": once(2.5)}


def main() -> None:
    what, *rest = sys.argv[1:]
    found = again() if what == "again" else of_catalogue(rest[0], float(rest[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
