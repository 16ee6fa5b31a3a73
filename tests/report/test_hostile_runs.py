"""One bad folder spoils no report, and a report touches nothing but its page."""

import json
import os
import stat
import struct
import subprocess
import zlib

import pytest
from PIL import Image
from test_report import write_run

from natpinn import InputError
from natpinn.cli import main
from natpinn.report.curves import draw_curves
from natpinn.report.html import write_report
from natpinn.report.runs import read_runs
from natpinn.runs.records import CONFIG, METRICS, PICTURE, SUMMARY

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(ran) (w) file closefile\nshowpage\n"


def page(runs, path):
    found, left_out = read_runs(runs)
    write_report(found, path, (), left_out)
    return path.read_text(), left_out


def data_of(html):
    """What the page's script reads."""
    data = html.split('application/json" id="data">', 1)[1]
    return json.loads(data.split("</script>", 1)[0])


def runs_in(data):
    return [run for problem in data["problems"] for run in problem["runs"]]


def png_of(width, height):
    """A small file that says it is a picture of a size."""

    def chunk(kind, content):
        code = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", code)

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * min(10**6, (1 + width // 8) * height), 9)
    parts = (b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_only_a_png_of_a_sane_size_is_opened(tmp_path, monkeypatch):
    started = []  # as Ghostscript would be
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: started.append(words))
    bad = {
        "eps": EPS,
        "bomb": png_of(40_000, 40_000),
        "larger": png_of(2**31 - 1, 2**31 - 1),
        "cut": png_of(40, 40)[:40],
        "text": b"no picture",
        "empty": b"",
    }
    for number, (name, content) in enumerate(bad.items()):
        run = write_run(tmp_path / "runs" / name, optimizer="spring", seed=number)
        config = run / CONFIG
        config.write_text(config.read_text().replace("1e-06", f"1e-{number + 1}"))  # a method each
        (run / PICTURE).write_bytes(content)
    good = write_run(tmp_path / "runs" / "good", optimizer="adam")
    Image.new("RGB", (40, 20), "red").save(good / PICTURE)
    fake = write_run(tmp_path / "runs" / "linked", optimizer="sgd")
    (fake / PICTURE).symlink_to(good / PICTURE)
    html, left_out = page([tmp_path / "runs"], tmp_path / "r.html")
    pictured = [run["name"] for run in runs_in(data_of(html)) if run["picture"]]
    assert pictured == ["good"]
    assert not started
    assert not left_out


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "device"])
def test_an_output_that_is_no_file_is_refused(tmp_path, kind):
    run, target = write_run(tmp_path / "run"), tmp_path / "target"
    kept = tmp_path / "kept"
    kept.write_text("theirs")
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "link":
        target.symlink_to(kept)
    elif kind == "folder":
        target.mkdir()
    else:
        target.symlink_to("/dev/null")
        target = os.path.realpath(target)
    before = os.lstat(target)
    with pytest.raises(InputError, match=r"is a (pipe|link|folder|device): choose a file"):
        page([run], target)
    after = os.lstat(target)
    assert (after.st_mode, after.st_ino, after.st_rdev) == (
        before.st_mode, before.st_ino, before.st_rdev
    )  # fmt: skip
    assert kept.read_text() == "theirs"


@pytest.mark.parametrize("out", ["", "/", ".", "/dev/null", "nowhere/r.html", "x" * 300])
def test_outputs_that_cannot_be_written_are_one_line(tmp_path, monkeypatch, capsys, out):
    write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["natpinn", "report", "run", "-o", out])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("natpinn: ")
    assert errors.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_nothing_is_left_of_a_page_that_could_not_be_written(tmp_path, monkeypatch):
    runs, _ = read_runs([write_run(tmp_path / "run")])
    old = tmp_path / "r.html"
    old.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="No space left"):
        write_report(runs, old)
    assert old.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "run"]


def in_config(old, new):
    def damage(run):
        text = (run / CONFIG).read_text()
        assert old in text
        (run / CONFIG).write_text(text.replace(old, new, 1))

    return damage


def in_summary(**values):
    return lambda run: (run / SUMMARY).write_text(json.dumps({"status": "finished"} | values))


def in_metrics(line):
    return lambda run: (run / METRICS).write_text(line + "\n" + (run / METRICS).read_text())


LONG = "x" * 100_000
DAMAGES = {
    "an infinite seed": in_config("seed = 1", "seed = inf"),
    "a seed that is not a number": in_config("seed = 1", "seed = nan"),
    "a seed of 400 digits": in_config("seed = 1", f"seed = 1{'0' * 400}"),
    "infinitely many points": in_config("interior = 30", "interior = inf"),
    "10**400 points": in_config("interior = 30", f"interior = 1{'0' * 400}"),
    "points as a text": in_config("interior = 30", 'interior = "<script>"'),
    "5000 digits": in_config("interior = 30", f"interior = {'1' * 5000}"),
    "nesting": in_config("seed = 1", f"seed = {'[' * 100_000}"),
    "a long name": in_config('"poisson_2d"', f'"{LONG}"'),
    "a long key": in_config("seed = 1", f"{LONG} = 1\nseed = 1"),
    "a long optimizer": in_config('"spring"', f'"{LONG}"'),
    "a list for a name": in_config('"poisson_2d"', '["poisson_2d"]'),
    "a list for an optimizer": in_config('"spring"', '["spring"]'),
    "a table for a name": in_config('"poisson_2d"', "{a = 1}"),
    "no table": in_config("[problem]", "[problems]"),
    "NaN in a summary": lambda run: (run / SUMMARY).write_text(
        '{"status": "finished", "best_l2": NaN, "peak_memory_bytes": NaN, "seconds": -Infinity}'
    ),
    "lists in a summary": in_summary(peak_memory_bytes=[1], device=["x"], message={"a": 1}),
    "a status of another type": in_summary(status=["finished"]),
    "a deep summary": lambda run: (run / SUMMARY).write_text("[" * 100_000),
    "a summary that is a list": lambda run: (run / SUMMARY).write_text("[]"),
    "a large summary": lambda run: os.truncate(run / SUMMARY, 10**11),
    "records of another type": in_metrics('{"step": "0", "seconds": null, "loss": []}'),
    "an infinite step": in_metrics('{"step": Infinity, "seconds": 0, "loss": 1}'),
    "a negative step": in_metrics('{"step": -1, "seconds": 0, "loss": 1}'),
    "deep records": in_metrics("[" * 100_000),
    "no text": lambda run: (run / METRICS).write_bytes(b"\xff\xfe\0"),
    "no records": lambda run: (run / METRICS).write_text(""),
    "a pipe": lambda run: (
        (run / METRICS).unlink(),
        os.mkfifo(run / METRICS),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_bad_folder_spoils_nothing(tmp_path, damage):
    write_run(tmp_path / "runs" / "good")
    bad = write_run(tmp_path / "runs" / "bad", seed=1)
    DAMAGES[damage](bad)
    html, left_out = page([tmp_path / "runs"], tmp_path / "r.html")
    runs, _ = read_runs([tmp_path / "runs"])
    assert "good" in [run.name for run in runs]
    assert len(runs) + len(left_out) == 2
    assert all("bad" in reason and len(reason) < 1000 for reason in left_out)
    assert len(html) < 5_000_000
    assert len(runs_in(data_of(html))) == len(runs)
    drawn = draw_curves(runs, tmp_path / "figures", ["png"])
    assert drawn
    assert all(path.parent == tmp_path / "figures" for path in drawn)


def test_problems_of_alike_and_long_names_have_figures_of_their_own(tmp_path):
    for number, name in enumerate(["poisson~2d", "poisson_2d", "x" * 300, "x" * 301]):
        write_run(tmp_path / "runs" / str(number), problem=name)
    write_run(tmp_path / "runs" / os.fsdecode(b"bad\xff"))
    runs, left_out = read_runs([tmp_path / "runs"])
    assert not left_out
    drawn = draw_curves(runs, tmp_path / "figures", ["png"])
    assert len(set(drawn)) == len(drawn) == 8
    assert all(path.exists() for path in drawn)


@pytest.mark.parametrize("name", ["a\\b", "..\\..\\x", "{}", "$(touch ran)", "a\nb", "</script>"])
def test_odd_names_of_folders_and_problems_are_shown_as_they_are(tmp_path, name):
    folder = tmp_path / "runs" / name.replace("/", "_")
    write_run(folder, problem=name)
    html, left_out = page([tmp_path / "runs"], tmp_path / "r.html")
    assert not left_out
    (shown,) = runs_in(data_of(html))
    assert shown["name"] == folder.name
    runs, _ = read_runs([tmp_path / "runs"])
    drawn = draw_curves(runs, tmp_path / "figures", ["png"])
    assert {path.parent for path in drawn} == {tmp_path / "figures"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figures", "r.html", "runs"]
