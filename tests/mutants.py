"""Mistakes made on purpose, each of which a test has to see. By hand; pytest does not collect it.

    python tests/mutants.py                               all of them, one after another
    python tests/mutants.py heat_at_the_end norm_cap      some of them
    python tests/mutants.py kernel_mirror --pytest-args -x -vv

A mutant replaces one piece of text, which must be in its file exactly once. It is made in a copy of
the package, and the tests that should see it run there; first they run without any mistake, and
have to pass. The repository is not touched. For every mutant a line says which test has seen it;
the exit code is 1 if one was not seen, and 2 if its text, its tests or its copy do not work.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = ("natpinn", "tests", "experiments", "docs", "benchmarks", "pyproject.toml")
QUIET = ("-x", "-q", "-p", "no:cacheprovider")
PASSED, FAILED = 0, 1  # what pytest returns; anything else is neither


class Mutant(NamedTuple):
    """One mistake: in a file the new text in place of the old, and the tests that should see it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "sketch_without_identity",
        "natpinn/solvers/sketch.py",
        "self.basis @ inside + outside",
        "self.basis @ inside",
        ("solvers/test_nystrom.py::test_a_sketch_solves_by_its_formula",),
    ),
    Mutant(
        "spectral_without_identity",
        "natpinn/solvers/sketch.py",
        "x = self.vectors @ (factors * along) + (b - self.vectors @ along) * outside",
        "x = self.vectors @ (factors * along)",
        ("solvers/test_nystrom.py::test_a_sketch_solves_by_its_formula",),
    ),
    Mutant(
        "shift_with_the_other_sign",
        "natpinn/solvers/sketch.py",
        "shifted = y + shift * omega",
        "shifted = y - shift * omega",
        ("solvers/test_nystrom.py::test_a_singular_matrix_is_shifted_up_once",),
    ),
    Mutant(
        "shift_added_again",
        "natpinn/solvers/sketch.py",
        "singular_values**2 - shift",
        "singular_values**2 + shift",
        ("solvers/test_nystrom.py::test_a_singular_matrix_is_shifted_up_once",),
    ),
    Mutant(
        "tracked_at_ten_times_the_damping",
        "natpinn/training/spectrum.py",
        "jnp.array(damping)",
        "jnp.array(10 * damping)",
        ("training/test_spectrum.py::test_the_spectrum_is_tracked_during_training",),
    ),
    Mutant(
        "recorded_at_ten_times_the_damping",
        "natpinn/training/loop.py",
        'ledger.state, found["damping"]',
        'ledger.state, 10 * found["damping"]',
        ("training/test_spectrum.py::test_the_spectrum_is_tracked_during_training",),
    ),
    Mutant(
        "doubled_eigenvalues",
        "natpinn/training/spectrum.py",
        "jnp.linalg.eigvalsh(batch",
        "2 * jnp.linalg.eigvalsh(batch",
        ("training/test_spectrum.py::test_the_spectrum_is_tracked_during_training",),
    ),
    Mutant(
        "preset_100_times_off",
        "natpinn/runs/presets.toml",
        "damping = 2.0817747605899887e-07",
        "damping = 2.0817747605899887e-05",
        ("search/test_presets.py",),
    ),
    Mutant(
        "experiment_10_times_off",
        "experiments/heat_4d.toml",
        "damping = 1.0818399894111989e-07",
        "damping = 1.0818399894111989e-06",
        ("search/test_presets.py",),
    ),
    Mutant(
        "ranked_by_the_best_error",
        "natpinn/search/tuning.py",
        'key = "final_l2" if',
        'key = "best_l2" if',
        ("search/test_tune.py::test_trials_are_ranked_by_their_error_at_the_end",),
    ),
    Mutant(
        "backtracking_begins_too_early",
        "natpinn/optimizers/hessian_free.py",
        "jnp.sum(counts < found.done) - 1",
        "jnp.sum(counts < found.done) - 4",
        (
            "optimizers/test_baselines.py::test_backtracking_begins_at_the_newest_iterate_that_is_kept",
        ),
    ),
    Mutant(
        "heat_at_the_end",
        "natpinn/problems/heat.py",
        "Condition(boundary, slab.initial",
        "Condition(boundary, slab.final",
        ("runs/test_solution.py::test_initial_values_hold_where_time_begins",),
    ),
    # Others, from the equations to the reports.
    Mutant(
        "drift_lost_in_loops",
        "natpinn/equations/operators.py",
        "second.sum(-1) + drifted",
        "second.sum(-1)",
        ("equations/test_operators.py::test_operators_equal_dense_derivatives",),
    ),
    Mutant(
        "faces_by_inverse_area",
        "natpinn/domains/box.py",
        "self.box.measure / (",
        "self.box.measure * (",
        ("domains/test_domains.py::test_boundary_points_are_on_faces_in_proportion_to_area",),
    ),
    Mutant(
        "members_equally_likely",
        "natpinn/domains/base.py",
        "jnp.cumsum(weights) / jnp.sum(weights)",
        "jnp.arange(1, len(weights) + 1) / len(weights)",
        ("domains/test_domains.py::test_slices_and_unions",),
    ),
    Mutant(
        "normals_that_point_in_time",
        "natpinn/domains/spacetime.py",
        "_with_time(jnp.zeros_like(time), normal)",
        "_with_time(time, normal)",
        ("domains/test_domains.py::test_named_faces",),
    ),
    Mutant(
        "weights_squared",
        "natpinn/least_squares/objective.py",
        "jnp.sqrt(self.conditions[name].weight / n)",
        "self.conditions[name].weight / jnp.sqrt(n)",
        ("solvers/test_solvers.py::test_loss_sums_weighted_means_of_squares",),
    ),
    Mutant(
        "padding_that_counts",
        "natpinn/least_squares/objective.py",
        "jnp.where(jnp.arange(padded) < n, scale, 0.0)",
        "jnp.full(padded, scale)",
        ("training/test_spectrum.py::test_padding_has_no_part_in_the_spectrum",),
    ),
    Mutant(
        "repeated_rows_count_twice",
        "natpinn/least_squares/objective.py",
        "jnp.where(start + jnp.arange(mine) >= first, weight, 0.0)",
        "jnp.where(start + jnp.arange(mine) >= 0, weight, 0.0)",
        ("least_squares/test_kernel.py::test_products_are_the_same_under_every_plan[streamed]",),
    ),
    Mutant(
        "kernel_mirror",
        "natpinn/least_squares/kernel.py",
        "jnp.tril(lower, -1).T",
        "jnp.tril(lower).T",
        (
            "least_squares/test_kernel.py::test_every_strategy_gives_the_dense_kernel_and_step[poisson_5d-explicit]",
        ),
    ),
    Mutant(
        "streams_exchanged",
        "natpinn/least_squares/blocks.py",
        '"nsi,mti->sntm"',
        '"nsi,mti->tnsm"',
        (
            "least_squares/test_kernel.py::test_every_strategy_gives_the_dense_kernel_and_step[poisson_5d-structured]",
        ),
    ),
    Mutant(
        "momentum_with_the_other_sign",
        "natpinn/optimizers/direction.py",
        "linearization.residual - linearization.jvp(carried)",
        "linearization.residual + linearization.jvp(carried)",
        ("test_golden.py::test_trajectories_agree",),
    ),
    Mutant(
        "bias_of_one_step_more",
        "natpinn/optimizers/natural_gradient.py",
        "momentum ** (2.0 * (state.step + 1))",
        "momentum ** (2.0 * (state.step + 2))",
        ("test_golden.py::test_trajectories_agree",),
    ),
    Mutant(
        "norm_cap",
        "natpinn/optimizers/natural_gradient.py",
        "longest = jnp.sqrt(schedule.at(self.norm_cap, state.step))",
        "longest = schedule.at(self.norm_cap, state.step)",
        ("solvers/test_solvers.py::test_the_norm_cap_bounds_a_step",),
    ),
    Mutant(
        "a_step_that_does_not_help",
        "natpinn/optimizers/line_search.py",
        "jnp.where(losses[best] < loss, sizes[best], 0.0)",
        "sizes[best]",
        ("solvers/test_solvers.py::test_grid_takes_the_best_step_and_none_that_does_not_help",),
    ),
    Mutant(
        "damping_raised_from_nothing",
        "natpinn/solvers/damped.py",
        "jnp.maximum(10 * last, round_off)",
        "10 * last",
        ("solvers/test_recovery.py::test_a_recovery_begins_at_the_round_off",),
    ),
    Mutant(
        "a_trend_without_patience",
        "natpinn/optimizers/trend.py",
        "2 * self.since > self.steps + PATIENCE",
        "self.since > PATIENCE",
        ("optimizers/test_auto.py::test_a_trend_knows_its_lowest_loss",),
    ),
    Mutant(
        "damping_against_surprise",
        "natpinn/optimizers/auto.py",
        "jnp.clip(excess**0.5,",
        "jnp.clip(excess**-0.5,",
        ("optimizers/test_auto.py::test_a_cooler_search_wants_more_damping",),
    ),
    Mutant(
        "a_peak_without_the_system",
        "natpinn/planning/fit.py",
        "size.fixed_bytes + max(phases",
        "max(phases",
        ("planning/test_plan.py::test_a_tighter_limit_holds_less_and_computes_more",),
    ),
    Mutant(
        "the_oldest_checkpoint",
        "natpinn/runs/checkpoint.py",
        "for step in reversed(found):",
        "for step in found:",
        ("runs/test_survival.py::test_a_damaged_checkpoint_falls_back_to_the_one_before",),
    ),
    Mutant(
        "records_from_the_future",
        "natpinn/runs/resume.py",
        'if (is_scheduled(int(record["step"])) and record["step"] <= step)',
        'if is_scheduled(int(record["step"]))',
        ("runs/test_survival.py::test_a_damaged_checkpoint_is_replaced_when_it_is_reached_again",),
    ),
    Mutant(
        "settings_of_another_optimizer",
        "natpinn/runs/settings.py",
        "if k in stay or not k.startswith(prefixes)",
        "if k in stay or k.startswith(prefixes)",
        ("cli/test_cli.py::test_a_file_of_settings_yields_to_another_optimizer_or_problem",),
    ),
    Mutant(
        "runs_ordered_by_their_last_error",
        "natpinn/report/runs.py",
        "math.inf if run.error is None else run.error",
        "math.inf if run.final is None else run.final",
        ("report/test_report.py::test_runs_are_ordered_by_the_error_of_what_they_return",),
    ),
    Mutant(
        "narrowed_beyond_the_ends",
        "natpinn/search/spaces.py",
        "min(max(self._scaled(best), low + half), high - half)",
        "self._scaled(best)",
        ("search/test_tune.py::test_ranges_are_drawn_from_and_narrowed_inside_themselves",),
    ),
    Mutant(
        "refined_one_trial_late",
        "natpinn/search/study.py",
        "place >= self.search.trials",
        "place > self.search.trials",
        ("search/test_tune.py::test_the_first_trial_after_the_wide_ones_is_narrow",),
    ),
    Mutant(
        "links_are_read",
        "natpinn/files.py",
        "flags | os.O_NOFOLLOW | os.O_NONBLOCK",
        "flags | os.O_NONBLOCK",
        ("runs/test_trust.py::test_a_link_to_a_whole_file_is_not_read",),
    ),
    Mutant(
        "partial_files_over_others",
        "natpinn/files.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
        "os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW",
        ("runs/test_trust.py::test_temporary_names_cannot_be_foreseen_and_are_gone_afterwards",),
    ),
    Mutant(
        "folders_of_others_are_removed",
        "natpinn/runs/checkpoint.py",
        "if is_kind(path, FOLDER) and is_kind(path / MARK, FILE):",
        "if is_kind(path, FOLDER):",
        ("runs/test_trust.py::test_folders_that_natpinn_did_not_write_are_not_removed",),
    ),
    Mutant(
        "sizes_are_not_checked",
        "natpinn/runs/checkpoint.py",
        "if declared > most:",
        "if False:",
        (
            "runs/test_trust.py::test_a_checkpoint_that_declares_gigabytes_is_refused_before_it_is_read",
        ),
    ),
    Mutant(
        "any_picture_is_opened",
        "natpinn/report/html.py",
        'Image.open(content, formats=["PNG"])',
        "Image.open(content)",
        ("report/test_hostile_runs.py::test_only_a_png_of_a_sane_size_is_opened",),
    ),
    Mutant(
        "metrics_lag_behind_checkpoints",
        "natpinn/runs/folder.py",
        'self._attempt("metrics", lambda: sync_file(self.path / METRICS), is_proof=False)',
        "",
        ("runs/test_survival.py::test_a_run_that_loses_its_power_ends_as_if_it_had_not",),
    ),
    Mutant(
        "names_of_checkpoints_are_not_synced",
        "natpinn/runs/checkpoint.py",
        "sync_folder(self.folder.parent)",
        "pass",
        ("runs/test_survival.py::test_a_run_that_loses_its_power_ends_as_if_it_had_not",),
    ),
    Mutant(
        "locked_databases_end_a_search",
        "natpinn/search/storage.py",
        "if not is_locked(error):",
        "if True:",
        (
            "search/test_hostile_studies.py::test_a_database_that_is_locked_is_waited_for_and_the_trial_counts_once",
        ),
    ),
    Mutant(
        "the_solution_chooses_what_is_returned",
        "natpinn/problems/evaluation.py",
        'return "validation_loss"',
        'return "validation_loss" if self.reference is None else "l2"',
        ("runs/test_solution.py::test_what_is_returned_is_chosen_without_the_solution",),
    ),
    Mutant(
        "validated_on_held_points",
        "natpinn/problems/problem.py",
        """fresh = {name: c.with_sampler(c.sampler.fresh) for name, c in self.conditions.items()}
        fresh = {
            name: c if c.domain.size else c.with_points(HELD_OUT * c.points)
            for name, c in fresh.items()
        }
""",
        "fresh = self.conditions\n",
        ("runs/test_solution.py::test_a_residual_that_is_small_at_its_points_alone_is_told",),
    ),
    Mutant(
        "two_passes_whatever_the_condition",
        "natpinn/solvers/accurate.py",
        "_condition(last.factor) > WORST_CONDITION ** digits()",
        "_condition(last.factor) < 0",
        ("solvers/test_accurate.py::test_it_equals_householder_however_it_is_planned",),
    ),
    Mutant(
        "whitened_with_the_damping_left_out",
        "natpinn/least_squares/slabs.py",
        "mirror(add(total, jnp.sqrt(damping) * whitened.inverse, 0))",
        "mirror(total)",
        ("solvers/test_accurate.py::test_it_equals_householder_however_it_is_planned",),
    ),
    Mutant(
        "accurate_below_nothing",
        "natpinn/solvers/accurate.py",
        "is_below = damping < round_off",
        "is_below = damping < 0",
        ("solvers/test_accurate.py::test_it_equals_householder_however_it_is_planned",),
    ),
    Mutant(
        "the_least_damping_of_a_long_run_at_once",
        "natpinn/optimizers/auto.py",
        "jnp.clip(depth, 0, 1)",
        "1.0",
        ("optimizers/test_auto.py::test_the_least_damping_follows_the_number_of_steps",),
    ),
    Mutant(
        "a_naive_search_goes_astray",
        "natpinn/optimizers/trend.py",
        "return self.lowest < self.first - jnp.log(factor)",
        "return self.lowest < self.first + jnp.log(factor)",
        ("optimizers/test_auto.py::test_a_search_that_lost_its_way_goes_back",),
    ),
    Mutant(
        "a_search_stays_cool",
        "natpinn/optimizers/auto.py",
        "return state.heat ** (1 - 1 / steps)",
        "return state.heat",
        ("optimizers/test_auto.py::test_a_cooled_search_warms_up_again",),
    ),
    Mutant(
        "a_run_without_an_end_never_settles",
        "natpinn/optimizers/auto.py",
        "jnp.isfinite(self.horizon), self.horizon, first * 2**doublings",
        "jnp.isfinite(self.horizon), self.horizon, jnp.inf",
        ("optimizers/test_auto.py::test_a_run_without_an_end_searches_and_settles_in_cycles",),
    ),
    Mutant(
        "focused_points_without_their_correction",
        "natpinn/least_squares/objective.py",
        "scale = pad_points(scale * self.corrections[name], padded)",
        "scale = pad_points(jnp.full(n, scale), padded)",
        ("least_squares/test_focus.py::test_the_loss_is_the_same_on_average_and_varies_less",),
    ),
    Mutant(
        "candidates_kept_more_than_once",
        "natpinn/least_squares/focus.py",
        "return jnp.minimum(shared, 1.0)",
        "return wanted",
        ("least_squares/test_focus.py::test_chances_are_probabilities_of_so_many",),
    ),
    Mutant(
        "sizes_by_the_clock_where_steps_are_given",
        "natpinn/planning/proposal.py",
        "if limits.steps is not None or limits.budget is None:",
        "if limits.budget is None:",
        (
            "planning/test_proposal.py::"
            "test_a_steps_worth_follows_from_budget_and_speed_and_not_from_the_clock_with_steps",
        ),
    ),
    Mutant(
        "dampings_of_float64_in_float32",
        "natpinn/optimizers/auto.py",
        "schedule.at(self.least_damping, step) ** digits()",
        "schedule.at(self.least_damping, step)",
        ("runs/test_precision.py::test_dampings_reach_as_deep_as_the_precision",),
    ),
    Mutant(
        "a_float32_run_is_in_float64",
        "natpinn/precision.py",
        "is_double = PRECISIONS[precision] is np.float64",
        "is_double = True",
        ("runs/test_precision.py::test_a_run_in_float32_is_whole_and_goes_on",),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; all if none is named")
    parser.add_argument("--pytest-args", nargs=argparse.REMAINDER, default=[], metavar="…")
    arguments = parser.parse_args()
    chosen = choose(arguments.names)
    broken = [problem for mutant in chosen for problem in problems(mutant)]
    if broken:
        sys.exit(_say("\n".join(broken), 2))
    tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    with copied() as folder:
        code, output = run(folder, tests, arguments.pytest_args)
    if code != PASSED:
        sys.exit(_say(f"{output}\nthe tests do not pass without a mistake", 2))
    sys.exit(max([try_one(mutant, arguments.pytest_args) for mutant in chosen]))


def choose(names: Sequence[str]) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in MUTANTS}
    assert len(known) == len(MUTANTS), "two mutants have one name"
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(_say(f"no mutant {', '.join(unknown)}; there are {', '.join(known)}", 2))
    return [known[name] for name in names or known]


def problems(mutant: Mutant) -> list[str]:
    """Why a mutant cannot be made."""
    path = ROOT / mutant.file
    if not path.is_file():
        return [f"{mutant.name}: {mutant.file} does not exist"]
    count = path.read_text().count(mutant.old)
    return [] if count == 1 else [f"{mutant.name}: {mutant.old!r} is {count} times in {path}"]


def try_one(mutant: Mutant, options: Sequence[str]) -> int:
    """0 if a test sees the mutant, 1 if none does, 2 if they did not get so far."""
    with copied() as folder:
        path = folder / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        code, output = run(folder, mutant.tests, options)
    if code not in (PASSED, FAILED):
        return _say(f"{output}\n{mutant.name}: pytest ended with {code}", 2)
    if code == PASSED:
        return _say(f"{mutant.name}: NOT SEEN by {', '.join(mutant.tests)}", 1)
    by = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    return _say(f"{mutant.name}: seen by {by[1] if by else output}", 0)


@contextmanager
def copied() -> Iterator[Path]:
    """The package, its tests and what these read, in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="natpinn-mutant-") as name:
        for part in COPIED:
            source, target = ROOT / part, Path(name) / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        yield Path(name)


def run(folder: Path, tests: Sequence[str], options: Sequence[str]) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", *QUIET, *(f"tests/{test}" for test in tests)]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def _say(text: str, code: int) -> int:
    print(text, flush=True)
    return code


if __name__ == "__main__":
    main()
