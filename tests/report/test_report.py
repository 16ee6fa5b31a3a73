"""The report: one page that sorts, toggles and works alone, from runs whole and broken."""

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from PIL import Image

from natpinn import InputError
from natpinn.cli import main
from natpinn.report.curves import draw_curves
from natpinn.report.html import write_report
from natpinn.report.runs import by_problem, read_curves, read_runs
from natpinn.runs.records import CONFIG, METRICS, PICTURE, SUMMARY

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")


def write_run(folder, problem="poisson_2d", optimizer="spring", seed=0, rate=1.0, steps=40):
    """A run folder as `natpinn solve` leaves it, with an error that falls like 1/step."""
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "problem": {"name": problem},
        "optimizer": {"name": optimizer, "damping": 1e-6, "norm_cap": "none"},
        "points": {"interior": 30, "boundary": 10},
    }
    (folder / CONFIG).write_text(tomli_w.dumps(config))
    lines = []
    for step in range(steps):
        error = rate * 1e-2 / (1 + step) ** 2
        record = {"step": step, "seconds": step / 10, "loss": error**2, "l2": error}
        if optimizer == "engd_w" and step % 5 == 4:  # as with track.every=5
            record["effective_dimension"] = 40 - step / 2
        lines.append(json.dumps(record) + "\n")
    (folder / METRICS).write_text("".join(lines))
    summary = {"status": "finished", "peak_memory_bytes": 10**8, "device": "cpu (cpu)"}
    (folder / SUMMARY).write_text(json.dumps(summary))
    return folder


@pytest.fixture
def runs(tmp_path):
    """Two problems, three methods, two seeds; one run is cut short and one is broken."""
    root = tmp_path / "runs"
    for seed in (0, 1):
        write_run(root / f"spring-{seed}", seed=seed, rate=1 + seed)
    write_run(root / "engd_w-0", optimizer="engd_w", rate=5)
    Image.new("RGB", (40, 20), "red").save(root / "engd_w-0" / PICTURE)
    write_run(root / "heat-0", problem="heat_4d")
    cut = write_run(root / "adam-0", optimizer="adam", rate=30, steps=7)
    (cut / SUMMARY).unlink()
    with (cut / METRICS).open("a") as file:
        file.write('{"step": 8, "seco')
    broken = write_run(root / "broken-0")
    (broken / CONFIG).write_text("not = [toml")
    return root


def browse(page, script, tmp_path):
    """What a script finds on the page, in a real browser; no error may be logged."""
    assert BROWSER is not None
    guard = (
        "<script>window.faults=[];window.onerror=(m)=>{faults.push(String(m))};"
        "console.error=(...a)=>{faults.push(a.join(' '))};</script>"
    )
    after = (
        "<pre id=outcome></pre><script>addEventListener('load',()=>setTimeout(()=>{"
        f"const found=(()=>{{{script}}})();"
        "const fetched=performance.getEntriesByType('resource').map(e=>e.name)"
        ".filter(n=>!n.startsWith('data:'));"
        "document.getElementById('outcome').textContent="
        "JSON.stringify({found,fetched,faults})},500))</script>"
    )
    text = page.read_text().replace("<head>", f"<head>{guard}", 1)
    copy = tmp_path / "browsed.html"
    copy.write_text(text.replace("</body>", f"{after}</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=15000"]
    place = f"--user-data-dir={tmp_path / 'profile'}"
    shown = subprocess.run(
        [BROWSER, *flags, place, "--window-size=1400,1000", "--dump-dom", f"file://{copy}"],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    outcome = re.search(r'<pre id="outcome">(.*?)</pre>', shown, re.DOTALL)
    assert outcome is not None, shown[-2000:]
    result = json.loads(outcome[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert result["faults"] == []
    assert result["fetched"] == []
    return result["found"]


def test_runs_are_collected_and_summed_up(runs):
    found, left_out = read_runs([runs])
    assert [run.name for run in found] == ["adam-0", "engd_w-0", "heat-0", "spring-0", "spring-1"]
    assert len(left_out) == 1
    assert "broken-0" in left_out[0]
    spring, cut = found[3], found[0]
    assert (spring.method, spring.seed, spring.points) == ("spring", 0, 40)
    assert spring.best == spring.final == pytest.approx(1e-2 / 1600)
    assert spring.curve.seconds_to(1e-3) == pytest.approx(0.3)
    assert spring.curve.seconds_to(1e-9) is None
    assert spring.steps_per_second == pytest.approx(10)
    assert spring.settings == {"damping": 1e-6}
    assert spring.command.startswith("natpinn solve --config ")
    assert cut.status == "unfinished"
    assert len(cut.curve.step) == 7  # the half-written line does not count
    groups = by_problem(found)
    assert list(groups) == ["heat_4d", "poisson_2d"]
    assert groups["poisson_2d"][0].name == "spring-0"  # the best comes first


def test_runs_are_ordered_by_the_error_of_what_they_return(runs):
    found, _ = read_runs([runs])
    good = next(run for run in found if run.name == "spring-0")
    bounced = replace(good.curve, error=[*good.curve.error[:-1], 1.0])
    ordered = by_problem([run if run is not good else replace(run, curve=bounced) for run in found])
    assert [run.name for run in ordered["poisson_2d"]][:2] == ["spring-0", "spring-1"]


def test_a_run_returns_the_parameters_of_its_smallest_validation_loss(tmp_path):
    write_run(tmp_path / "spring-0")
    records = tmp_path / "spring-0" / METRICS
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    losses = [0.5 if i == 3 else 1.0 for i in range(len(lines))]
    lines = [line | {"validation_loss": x} for line, x in zip(lines, losses, strict=True)]
    records.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (found,), _ = read_runs([tmp_path])
    assert found.error == lines[3]["l2"] > found.best


def test_methods_are_runs_of_equal_settings(tmp_path):
    root = tmp_path / "runs"
    write_run(root / "a" / "spring-0")
    write_run(root / "b" / "spring-0", steps=20)
    write_run(root / "b" / "spring-1", seed=1)
    write_run(root / "c" / "spring-0", optimizer="adam")
    found, _ = read_runs([root])
    assert [run.method for run in found] == ["a/spring", "a/spring", "a/spring", "c/spring"]
    assert by_problem(found)["poisson_2d"][-1].name == "b/spring-0"


def test_problems_of_other_dimensions_and_own_code_are_told_apart(tmp_path):
    names = {}
    for i, problem in enumerate(
        [
            {"name": "heat_4d", "dimension": 4},
            {"name": "heat_4d", "dimension": 10},
            {"name": "mine", "own": True},
            {"name": "mine:problem"},
            {"name": "wave_2d", "dimension": "none", "own": True},
        ]
    ):
        folder = write_run(tmp_path / f"r-{i}")
        config = tomllib.loads((folder / CONFIG).read_text()) | {"problem": problem}
        (folder / CONFIG).write_text(tomli_w.dumps(config))
    found, _ = read_runs([tmp_path])
    names = [run.problem for run in found]
    assert names == ["heat_4d", "heat_10d", "mine", "mine:problem", "wave_2d"]
    assert found[2].command.startswith("from Python")
    assert found[3].command.startswith("natpinn solve mine:problem --config")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (METRICS, '{"step": 0, "loss": 1.0, "l2": 1.0}\n'),
        (METRICS, '{"step": 0, "seconds": "x", "loss": 1.0, "l2": 1.0}\n'),
        (METRICS, '{"step": 0, "seconds": 1, "loss": 1.0}\n'),
        (METRICS, ""),
        (CONFIG, 'seed = "x"'),
        (CONFIG, 'points = { interior = "x" }'),
        (SUMMARY, "[]"),
    ],
)
def test_damaged_runs_are_left_out(runs, file, content):
    (runs / "spring-0" / file).write_text(content)
    found, left_out = read_runs([runs])
    assert "spring-0" not in [run.name for run in found]
    assert len(left_out) == 2


def test_folders_without_runs_are_explained(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no run was found"):
        read_runs([tmp_path / "empty"])
    with pytest.raises(InputError, match="is not valid TOML"):
        read_runs([runs / "broken-0"])
    with pytest.raises(InputError, match="is not there"):
        read_runs([tmp_path / "nothing"])


def test_published_curves_are_read(tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text("run,step,seconds,loss,l2\npoisson_2d/spring/fixed,0,1.0,2.0,0.5\n")
    (curve,) = read_curves(path)
    assert (curve.problem, curve.name, curve.error) == ("poisson_2d", "spring/fixed", [0.5])
    assert (curve.optimizer, replace(curve, name="large/engd_w-0").optimizer) == (
        "spring",
        "engd_w",
    )
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="needs the columns"):
        read_curves(path)
    path.write_text("run,step,seconds,loss,l2\nx,0,1.0,2.0,often\n")
    with pytest.raises(InputError, match="no table of curves"):
        read_curves(path)


@needs_browser
def test_the_page_works_in_a_browser(runs, tmp_path):
    found, left_out = read_runs([runs])
    csv = tmp_path / "curves.csv"
    rows = "".join(f"poisson_2d/spring/fixed,{i},{i},1e-{i},1e-{i}\n" for i in range(1, 5))
    csv.write_text("run,step,seconds,loss,l2\n" + rows)
    page = tmp_path / "report.html"
    write_report(found, page, read_curves(csv), left_out)
    seen = browse(
        page,
        """
        const section = document.querySelectorAll('section')[1];
        const rows = () => [...section.querySelectorAll('tbody tr')];
        const names = () => rows().map(r => r.cells[0].innerText);
        const heads = [...section.querySelectorAll('th button')];
        const press = (t) => heads.find(h => h.innerText.startsWith(t)).click();
        const plots = [...section.querySelectorAll('.plot')];
        const visible = () => plots.map(p => p.data.filter(t => t.visible !== false).length);
        const out = {titles: [...document.querySelectorAll('h2')].map(h => h.innerText)};
        out.first = names();
        press('best error'); out.up = names();
        press('best error'); out.down = names();
        press('run'); out.named = names();
        out.before = visible();
        out.dashed = plots[0].data.filter(t => t.line.dash === 'dash').length;
        const chips = [...section.querySelectorAll('.legend button')];
        out.chips = chips.map(c => c.innerText);
        chips[0].click(); out.hidden = visible(); chips[0].click(); out.back = visible();
        out.kinds = plots.map(p => p.dataset.x + ' ' + p.dataset.y);
        const drawn = plots.at(-1).querySelector('.scatterlayer path.js-line').getAttribute('d');
        out.corners = drawn.split('L').length;
        out.heads = heads.map(h => h.innerText);
        out.pictures = section.querySelectorAll('img').length;
        out.left = document.querySelector('ul.note').innerText;
        out.wide = document.documentElement.scrollWidth <= innerWidth;
        return out;
        """,
        tmp_path,
    )
    assert seen["titles"] == ["heat_4d", "poisson_2d", "Left out"]
    assert seen["first"] == seen["up"] == ["spring-0", "spring-1", "engd_w-0", "adam-0"]
    assert seen["down"] == seen["up"][::-1]
    assert seen["named"] == sorted(seen["up"])
    assert seen["chips"][0] == "spring (2 runs)"
    assert seen["chips"][-1] == "published spring/fixed"
    assert seen["before"] == [5, 5, 5, 5, 1]  # four runs and a published one; d_eff of one
    assert seen["dashed"] == 1
    assert seen["hidden"] == [3, 3, 3, 3, 1]
    assert seen["back"] == seen["before"]
    assert seen["kinds"][-1] == "step effective_dimension"
    assert seen["corners"] > 5  # though the effective dimension is of every fifth evaluation
    assert "points" in seen["heads"]
    assert seen["pictures"] == 1
    assert "broken-0" in seen["left"]
    assert seen["wide"]


@needs_browser
def test_two_hundred_runs_fit_on_a_page(tmp_path):
    for i in range(200):
        folder = tmp_path / "runs" / f"m{i % 20}-{i // 20}"
        write_run(folder, optimizer=f"m{i % 20}", seed=i // 20, rate=1 + i)
    found, _ = read_runs([tmp_path / "runs"])
    page = tmp_path / "report.html"
    write_report(found, page)
    script = """
        return [document.querySelectorAll('tbody tr').length,
                document.querySelectorAll('.legend button').length,
                document.querySelectorAll('.plot')[0].data.length];
    """
    assert browse(page, script, tmp_path) == [200, 20, 200]


def test_names_cannot_break_the_page(tmp_path):
    folder = write_run(tmp_path / "<img src=x>-0", problem="</script><b>{{DATA}}")
    found, _ = read_runs([folder])
    page = tmp_path / "report.html"
    write_report(found, page)
    text = page.read_text()
    assert "</script><b>" not in text
    assert "\\u003c/script>\\u003cb>{{DATA}}" in text


def test_figures_are_drawn_for_print(runs, tmp_path):
    found, _ = read_runs([runs])
    written = draw_curves(found, tmp_path / "figures", ["png"])
    names = {path.name for path in written}
    assert {"poisson_2d-error.png", "poisson_2d-loss.png", "heat_4d-error.png"} <= names
    with Image.open(tmp_path / "figures" / "poisson_2d-effective_dimension.png") as image:
        is_blue = np.asarray(image.convert("RGB")) == (31, 119, 180)  # of its line and legend
    assert is_blue.all(-1).sum() > 500
    with Image.open(tmp_path / "figures" / "poisson_2d-error.png") as image:
        assert image.width > 1000
    with pytest.raises(InputError, match="got 'bmp'"):
        draw_curves(found, tmp_path, ["bmp"])


def test_the_commands(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["natpinn", *map(str, arguments)])
        main()
        return capsys.readouterr()

    out, err = run("report", runs, "-o", "page.html")
    assert "page.html has 5 runs" in out
    assert "left out" in err
    assert (tmp_path / "page.html").stat().st_size > 10**6
    out, _ = run("plot", runs, "-o", "figures", "--format", "pdf", "--json")
    assert len(json.loads(out)["figures"]) == 5
