"""Iterations of conjugate gradients on a real kernel, plain and with a sketch as preconditioner.

    python benchmarks/preconditioning.py [--steps 0 3 10 20] [--rank 0.1]

poisson_5d with 850 + 150 points, after some steps of ENGD-W, to a relative residual of 1e-10.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp

import natpinn

MOST = 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 3, 10, 20])
    parser.add_argument("--rank", type=float, default=0.1)
    arguments = parser.parse_args()
    key = jax.random.key(0)
    sizes = {"interior": 850, "boundary": 150}
    problem = natpinn.problems.get("poisson_5d", points=sizes)
    model = problem.default_model(key)
    objective, theta = problem.objective(model, problem.sample(key))
    evaluation = problem.evaluation(model, key)
    for steps in arguments.steps:
        after = theta
        if steps:
            optimizer = natpinn.engd_w(1e-6)
            result = natpinn.train(objective, theta, optimizer, evaluation, key=key, steps=steps)
            after = result.state.theta
        linearization = eqx.filter_jit(lambda o, t: o.linearize(t))(objective, after)
        eigenvalues = jnp.linalg.eigvalsh(linearization.kernel())
        largest = float(eigenvalues[-1])
        print(f"after {steps} steps: largest eigenvalue {largest:.3g}, of rank 100 and 200 "
              f"{float(eigenvalues[-100]):.2g} and {float(eigenvalues[-200]):.2g}")  # fmt: skip
        for name, damping in (("1e-6", 1e-6), ("1e-6 of the largest eigenvalue", 1e-6 * largest)):
            counts = [iterations(linearization, r, damping, key) for r in (None, arguments.rank)]
            print(f"  damping {name}: plain {counts[0]}, with a sketch {counts[1]}")


@eqx.filter_jit
def _solve(
    solver: natpinn.ConjugateGradients, linearization: natpinn.Linearization, damping, key
) -> jax.Array:
    system, _ = solver.factorize(linearization, None, key=key)
    _, info = system.solve(linearization.residual, damping)
    return info.details["cg_iterations"]


def iterations(
    linearization: natpinn.Linearization, rank: float | None, damping: float, key: jax.Array
) -> str:
    solver = natpinn.ConjugateGradients(rank, tolerance=1e-10, most_iterations=MOST)
    count = int(_solve(solver, linearization, jnp.array(damping), key))
    return f"more than {MOST}" if count == MOST else str(count)


if __name__ == "__main__":
    main()
