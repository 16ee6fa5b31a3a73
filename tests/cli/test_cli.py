"""The command line as a user meets it."""

import json
import tomllib

import pytest

import natpinn
from natpinn import InputError
from natpinn.cli import main
from natpinn.runs import run as runs

FIXED, GRID = "--set optimizer.line_search=none", "--set optimizer.line_search=grid"
SMALL = ["--set", "points.interior=30", "--set", "points.boundary=10", "--steps", "3"]


@pytest.fixture
def natpinn_command(capsys, monkeypatch, tmp_path):
    """Runs a command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["natpinn", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


def test_list_names_everything(natpinn_command):
    code, out, _ = natpinn_command("list", "--json")
    names = json.loads(out)
    assert code == 0
    assert set(names["problems"]) == set(natpinn.problems.CATALOGUE)
    natural = {"auto", "engd", "engd_w", "spring", "engd_w_nystrom", "spring_nystrom"}
    others = {"sgd", "adam", "lbfgs", "hessian_free", "kfac"}
    assert set(names["optimizers"]) == natural | others
    code, out, _ = natpinn_command("list")
    assert "poisson_5d" in out
    assert "engd_w" in out


def test_solve_writes_a_run_folder_and_says_where(natpinn_command, tmp_path):
    code, out, err = natpinn_command("solve", "poisson_2d", "--optimizer", "spring", *SMALL)
    assert code == 0
    assert "runs/poisson_2d-spring-1/solution.png" in out
    assert "relative L2 error" in err
    assert (tmp_path / "runs/poisson_2d-spring-1/solution.png").exists()

    config = tmp_path / "runs/poisson_2d-spring-1/config.toml"
    code, out, _ = natpinn_command("solve", "--config", config, "--out", "again", "--json")
    assert code == 0
    first = json.loads((tmp_path / "runs/poisson_2d-spring-1/summary.json").read_text())
    again = json.loads(out)
    assert again["final_l2"] == first["final_l2"]

    code, _, err = natpinn_command("solve", "--config", config, "--out", "again")
    assert code == 2
    assert "again holds another run" in err


def test_commands_at_the_same_time_have_folders_of_their_own(
    natpinn_command, tmp_path, monkeypatch
):
    run, taken = runs.run, []

    def slow(parts, folder, progress):
        taken.append(folder)
        if len(taken) == 1:
            assert natpinn_command("solve", "poisson_2d", *SMALL)[0] == 0
        return run(parts, folder, progress)

    monkeypatch.setattr(runs, "run", slow)
    assert natpinn_command("solve", "poisson_2d", "--budget", "inf", *SMALL)[0] == 0
    assert [folder.name for folder in taken] == ["poisson_2d-auto-1", "poisson_2d-auto-2"]

    def fail(parts, folder, progress):
        raise InputError("no")

    monkeypatch.setattr(runs, "run", fail)
    assert natpinn_command("solve", "poisson_2d", *SMALL)[0] == 2
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_dry_run_prints_the_settings_and_writes_nothing(natpinn_command, tmp_path):
    code, out, _ = natpinn_command("solve", "heat_4d", "--optimizer", "spring", "--dry-run")
    settings = tomllib.loads(out)
    assert code == 0
    assert settings["optimizer"]["norm_cap"] == "none"
    assert settings["optimizer"]["momentum"] == 0.9078455921509652
    assert settings["points"] == {"interior": 3000, "boundary": 250, "initial": 250}
    assert settings["train"]["budget"] == 60.0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ("poisson_5d --optimizer engd_w", "damping", 3.1732122998048178e-12),
        (f"poisson_5d --optimizer engd_w {FIXED}", "damping", 6.804473756440335e-08),
        (f"poisson_5d --optimizer spring {GRID}", "momentum", 0.0632666532797279),
        ("poisson_100d --optimizer spring --set optimizer.damping=1", "damping", 1),
    ],
)
def test_presets_follow_problem_optimizer_and_step_rule(natpinn_command, arguments, name, value):
    _, out, _ = natpinn_command("solve", *arguments.split(), "--dry-run", "--json")
    assert json.loads(out)["optimizer"][name] == value


def test_presets_bring_points_and_nets(natpinn_command):
    _, out, _ = natpinn_command(
        "solve", "poisson_10d", "--optimizer", "spring", "--dry-run", "--json"
    )
    assert json.loads(out)["points"] == {"interior": 100, "boundary": 50}
    _, out, _ = natpinn_command("solve", "poisson_5d", "--optimizer", "engd", "--dry-run", "--json")
    assert json.loads(out)["model"]["widths"] == [64, 48, 32, 16]


def test_settings_reach_sampler_schedule_and_dimension(natpinn_command):
    schedule = '{schedule="cosine_decay_schedule", init_value=0.1, decay_steps=100}'
    code, out, err = natpinn_command(
        "solve", "poisson_2d", "--optimizer", "spring", *SMALL, "--json", "--out", "r",
        "--set", "sampling.points=sobol", "--set", "sampling.held=true",
        "--set", "problem.dimension=3", "--set", f"optimizer.learning_rate={schedule}",
        "--set", "model.widths=[5]", "--set", "model.activation=sin",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["parameters"] == 4 * 5 + 6


def test_a_users_own_problem_and_model_run_from_the_command_line(natpinn_command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import jax\nfrom natpinn import *\n"
        "problem = Problem({'ode': Condition(lambda u, t: partial(u, 0)(t) + u(t), Box([0], [1]),"
        " points=20)}, widths=(4,))\n"
        "def net(key):\n    return MLP(1, (3,), key=key)\n"
    )
    code, out, err = natpinn_command("solve", "mine:problem", "--steps", "2")
    assert code == 0, err
    assert "validation loss" in out
    code, out, _ = natpinn_command(
        "solve", "mine:problem", "--steps", "2", "--set", "model.name=mine:net", "--json"
    )
    assert json.loads(out)["parameters"] == 3 + 3 + 3 + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("poisson5d", "did you mean 'poisson_5d'"),
        ("poisson_2d --optimizer sprin", "did you mean 'spring'"),
        ("poisson_2d --set optimizer.dampin=1", "did you mean 'optimizer.damping'"),
        ("poisson_2d --set damping=1", "did you mean 'optimizer.damping'"),
        ("poisson_2d --set optimizer.damping=-1", "damping must be above 0"),
        ("poisson_2d --optimizer spring --set optimizer.momentum=1", "momentum must be"),
        ("poisson_2d --optimizer spring --set optimizer.momentum=x", "momentum must be a number"),
        ("poisson_2d --set points.interior=0", "points must be a whole number from 1, got 0"),
        ("poisson_2d --set points.interior=3.5", "3.5 is not a whole number"),
        ("poisson_2d --set seed=true", "seed"),
        ("poisson_2d --set nonsense", "key=value"),
        ("poisson_2d --set sampling.points=sobl", "did you mean 'sobol'"),
        ("poisson_2d --optimizer engd_w --set optimizer.line_search=gird", "did you mean 'grid'"),
        (
            "poisson_2d --optimizer engd_w --set optimizer.line_search=quadratic",
            "a natural gradient needs a LineSearch",
        ),
        (
            "poisson_2d --set sampling.steps_per_batch=0",
            "steps_per_batch must be a whole number from",
        ),
        ("poisson_2d --optimizer kfac --set optimizer.refresh_every=0", "refresh_every"),
        ("poisson_2d --optimizer lbfgs --set optimizer.memory_size=none", "memory_size"),
        ("poisson_2d --optimizer hessian_free --set optimizer.curvature=fisher", "ggn"),
        ("poisson_2d --set problem.dimension=0", "whole number from 1"),
        ("poisson_2d --set model.widths=[0]", "a width must be a whole number from 1, got 0"),
        ("poisson_2d --set problem.own=true", "was an object in Python"),
        (f"poisson_2d --optimizer spring {GRID} --set optimizer.norm_cap=0.001", "norm cap"),
        ("poisson_2d --set model.name=a:b --set model.widths=[3]", "natpinn's own network"),
        ("poisson_2d --optimizer adam --track condition_number", "optimizers with a damping only"),
        ("poisson_2d --devices 700", "700"),
        ("poisson_2d --steps 0", "steps must be a whole number from 1"),
        ("poisson_2d --budget -3", "budget must be"),
        ("poisson_2d --steps many", "--steps"),
        ("poisson_2d --config missing.toml", "cannot read missing.toml"),
        ("nowhere:problem", "cannot import 'nowhere'"),
        ("natpinn:nothing", "natpinn has no 'nothing'"),
        ("natpinn:Box", "Problem"),
        ("", "which problem"),
        ("poisson_2d --frobnicate", "frobnicate"),
        (":problem", "module:attribute"),
        ("..x:problem", "module:attribute"),
        ("broken:problem", "SyntaxError"),
        ("raising:problem", "ZeroDivisionError"),
        ("raising", "Write raising:problem"),
        ("./raising.py", "Write raising:problem"),
        ("own/raising.py:problem", "own.raising:problem"),
        ("poisson_2d --set model.widths=32", "a list, as in [32]"),
        ("natpinn:problems --set problem.dimension=3", "Problem"),
        ("poisson_2d --optimizer engd_w --set optimizer.line_search=[1]", "line search"),
        ("poisson_2d --optimizer engd --set optimizer.average=abc", "average"),
        ("poisson_2d --set seed=9223372036854775808", "seed"),
        ("poisson_2d --seed -1", "seed"),
        ("poisson_2d --set model.name=natpinn:Box", "cannot be built from a key"),
        ("poisson_2d --set model.activation=foo", "activation"),
        ("poisson_2d --set evaluation.points=0", "evaluation.points must be a whole number from 1"),
        ("poisson_2d --stop-at nan", "stop_at"),
        ("poisson_2d --set optimizer.damping=true", "damping must be a number"),
        ("poisson_2d --set optimizer.damping={schedule='constant_schedule',value=-1}", "damping"),
        ("poisson_2d --set optimizer.damping={schedule='wobble'}", "wobble"),
        (f"poisson_2d --out {'x' * 300}", "cannot use"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(natpinn_command, arguments, message, tmp_path):
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "raising.py").write_text("problem = 1 / 0")
    code, out, err = natpinn_command("solve", *arguments.split())
    assert code == 2
    assert out == ""
    assert natpinn_command("solve", *arguments.split(), "--dry-run") == (code, out, err)
    assert message in err
    assert err.startswith("natpinn: ")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_file_of_settings_yields_to_another_optimizer_or_problem(natpinn_command, tmp_path):
    _, out, _ = natpinn_command("solve", "poisson_2d", "--optimizer", "spring", "--dry-run")
    (tmp_path / "base.toml").write_text(out)
    base = ["solve", "--config", "base.toml", "--dry-run", "--json"]
    _, out, _ = natpinn_command(*base, "--optimizer", "adam")
    assert json.loads(out)["optimizer"] == {"name": "adam", "learning_rate": 1e-3}
    _, out, _ = natpinn_command(*base, "poisson_5d")
    changed = json.loads(out)
    assert changed["problem"] == {"name": "poisson_5d", "dimension": 5, "own": False}
    assert changed["model"]["widths"] == [64, 64, 48, 48]
    assert changed["optimizer"]["momentum"] == 0.8269661781185692


def test_a_given_learning_rate_replaces_the_line_search(natpinn_command):
    rate = "optimizer.learning_rate=0.3"
    arguments = ["solve", "poisson_2d", "--optimizer", "engd_w", "--set", rate]
    arguments += ["--dry-run", "--json"]
    _, out, _ = natpinn_command(*arguments)
    assert json.loads(out)["optimizer"]["line_search"] == "none"
    _, _, err = natpinn_command(*arguments, "--set", "optimizer.line_search=grid")
    assert "not both" in err


def test_the_bare_command_shows_its_help(natpinn_command):
    code, out, _ = natpinn_command()
    assert code == 0
    assert len(out.splitlines()) > 5
    code, out, _ = natpinn_command("bench")
    assert (code, "step" in out, len(out.splitlines()) > 5) == (0, True, True)
    assert natpinn_command("--version")[1] == f"natpinn {natpinn.__version__}\n"


def test_bench_step_measures_a_step_against_the_floor(natpinn_command):
    arguments = ["bench", "step", "--problem", "poisson_2d", "--repeats", "1"]
    arguments += ["--set", "points.interior=30", "--set", "points.boundary=10"]
    code, out, _ = natpinn_command(*arguments, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["rows"] == 40
    assert result["parameters"] == 1185
    assert result["floor_ratio"] == result["step_seconds"] / result["floor_seconds"]
    assert set(result["parts"]) == {"sample", "linearize", "kernel", "solve", "jvp", "vjp"}
    assert result["peak_memory_bytes"] > 0
    code, _, err = natpinn_command("bench", "step", "--problem", "poison_2d")
    assert (code, "did you mean" in err) == (2, True)


def test_help_teaches(natpinn_command):
    code, out, _ = natpinn_command("solve", "--help")
    assert code == 0
    for word in ("--optimizer", "--budget", "--set", "natpinn solve poisson_2d"):
        assert word in out


def test_explain_prints_the_plan_and_runs_nothing(natpinn_command, tmp_path):
    arguments = ["solve", "poisson_2d", "--set", "model.widths=[64,64]", *SMALL, "--explain"]
    code, out, _ = natpinn_command(*arguments)
    assert code == 0
    assert "N = 40 rows (30 interior, 10 boundary)" in out
    assert "whole: the Jacobian is held" in out
    assert not list(tmp_path.iterdir())

    code, out, _ = natpinn_command(*arguments, "--json")
    known = json.loads(out)
    assert code == 0
    assert known["bytes"]["system"] == 8 * 40**2
    assert known["bytes"]["compiled_peak"] < known["bytes"]["available"]
    assert known["flops"]["solve"] == 40**3 // 3


def test_bench_scaling_fits_exponents(natpinn_command, tmp_path):
    code, out, err = natpinn_command(
        "bench", "scaling", "--problem", "poisson_2d", "--vary", "rows", "--factors", "0.05,0.1",
        "--set", "model.widths=[8]", "--repeats", "1", "--json", "--plot", "scaling.png",
    )  # fmt: skip
    assert code == 0, err
    series = json.loads(out)["rows"]
    assert [step["rows"] for step in series["steps"]] == [25, 50]
    assert isinstance(series["exponent"], float)
    assert (tmp_path / "scaling.png").exists()

    code, _, err = natpinn_command("bench", "scaling", "--vary", "row")
    assert code == 2
    assert "rows" in err
