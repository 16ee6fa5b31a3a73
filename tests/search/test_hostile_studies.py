"""A study's folder may be anyone's, its database may be locked, and its password stays secret."""

import os
import sqlite3
import stat
import struct
import threading
import time

import numpy as np
import pytest
from test_tune import small_search

from natpinn import InputError
from natpinn.cli import main
from natpinn.runs import trackers
from natpinn.search import storage as storages
from natpinn.search import tuning
from natpinn.search.storage import ENVIRONMENT, hide_address, hide_password, is_inside
from natpinn.search.tuning import final_error, join, open_study, work

PASSWORD = "hunter2:p@ss/w#rd"
ADDRESSES = {
    "plain": "postgresql://me:{}@host:5432/base",
    "driver": "postgresql+psycopg://me:{}@host/base?sslmode=require",
    "without a user": "redis://:{}@host/0",
    "option": "postgresql://host/base?user=me&password={}",
    "capital option": "mysql://me@host/base?PASSWD={}&charset=utf8",
    "odbc": "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dme%3BPWD%3D{}",
}


@pytest.mark.parametrize("form", ADDRESSES)
@pytest.mark.parametrize("password", ["secret", PASSWORD, "s%40cret", "pa:ss", "a b"])
def test_no_form_of_an_address_shows_a_password(form, password):
    if "option" in form or form == "odbc":
        password = password.replace("#", "%23").replace("&", "%26")
    address = ADDRESSES[form].format(password)
    message = f"cannot connect to {address!r}: no route\nfor user me with {password}, twice"
    for shown in (hide_address(address), hide_password(message, address)):
        assert password not in shown
        assert "***" in shown
    assert "host" in hide_address(address) or form == "odbc"


def test_what_has_no_password_is_shown_as_it_is():
    for text in ("sqlite:///all.db", "postgresql://me@host/b", "a: b@c", "password is wrong"):
        assert hide_password(text) == hide_address(text) == text
    told = "go on with `natpinn resume 'runs/pass=2 x'`, or runs/bypass=1"
    assert hide_password(told) == told


def test_no_file_or_message_of_a_study_has_the_password(tmp_path, monkeypatch, capsys):
    url = f"sqlite:///file:{tmp_path}/all.db?uri=true&password=secret"
    work(open_study(small_search(trials=1), out=tmp_path / "s", storage=url))
    path = tmp_path / "s" / "study.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "password=***" in path.read_text()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert not [p for p in files if b"secret" in p.read_bytes()]
    for address in (a.format(PASSWORD) for a in ADDRESSES.values()):
        for arguments in (
            ["tune", "poisson_2d", "--trials", "1", "--storage", address, "--out", "x"],
            ["tune", "poisson_2d", address],
            ["tune", str(tmp_path / "s"), "--storage", address],
        ):
            monkeypatch.chdir(tmp_path)
            monkeypatch.setattr("sys.argv", ["natpinn", *arguments])
            with pytest.raises(SystemExit):
                main()
            out, err = capsys.readouterr()
            assert PASSWORD not in out + err
            assert "hunter2" not in out + err


def test_a_database_elsewhere_is_contacted_only_if_the_user_says_so(tmp_path, monkeypatch):
    folder, url = tmp_path / "s", f"sqlite:///{tmp_path}/all.db"
    work(open_study(small_search(trials=1), out=folder, storage=url))
    (tmp_path / "all.db").rename(tmp_path / "kept.db")
    with pytest.raises(InputError, match="does not contact because a file names it: say --storage"):
        join(folder)
    with pytest.raises(InputError, match="does not contact"):
        open_study(small_search(trials=1), out=folder)
    with pytest.raises(InputError, match="other storage"):
        join(folder, storage=f"sqlite:///{tmp_path}/other.db")
    monkeypatch.setenv(ENVIRONMENT, f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(InputError, match="does not contact"):
        join(folder)
    assert not list(tmp_path.glob("*all.db"))
    (tmp_path / "kept.db").rename(tmp_path / "all.db")
    assert len(join(folder, storage=url).study.finished) == 1
    monkeypatch.setenv(ENVIRONMENT, url)
    assert len(join(folder).study.finished) == 1


def test_a_database_in_the_folder_needs_nothing(tmp_path):
    folder = tmp_path / "s"
    url = f"sqlite:///{folder}/trials.db"
    folder.mkdir()
    (folder / "notes").touch()
    with pytest.raises(InputError, match="holds other files"):
        open_study(small_search(trials=1), out=folder, storage=url)
    (folder / "notes").unlink()
    work(open_study(small_search(trials=1), out=folder, storage=url))
    assert len(join(folder).study.finished) == 1
    for other in (
        f"sqlite:///{folder}/../all.db",
        f"sqlite:///file:{folder}/a.db?uri=true",
        f"sqlite:///{folder}/sub/a.db",
        f"mysql:///{folder}/a.db",
        "sqlite://",
        "sqlite:///:memory:",
    ):
        assert not is_inside(other, folder)
    (folder / "trials.db").rename(tmp_path / "theirs.db")
    (folder / "trials.db").symlink_to(tmp_path / "theirs.db")
    with pytest.raises(InputError, match="does not contact"):
        join(folder)


@pytest.mark.parametrize("name", ["study.journal", "study.toml", "best.toml", "trials"])
def test_links_in_a_study_are_not_followed(tmp_path, name):
    folder = tmp_path / "s"
    work(open_study(small_search(trials=1), out=folder))
    (folder / name).rename(tmp_path / "theirs")
    (folder / name).symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match="is a link"):
        join(folder)


def test_a_link_to_an_empty_folder_gets_no_trial(tmp_path):
    folder, theirs = tmp_path / "s", tmp_path / "theirs"
    bench = open_study(small_search(trials=1), out=folder)
    theirs.mkdir()
    (folder / "trials" / "0000").symlink_to(theirs)
    with pytest.raises(InputError, match="is a link"):
        work(bench)
    assert not list(theirs.iterdir())


def test_a_journal_of_several_names_is_refused_and_one_without_lines_is_kept(tmp_path):
    folder, theirs = tmp_path / "s", tmp_path / "notes"
    work(open_study(small_search(trials=1), out=folder))
    journal = folder / "study.journal"
    journal.rename(theirs)
    os.link(theirs, journal)
    before = theirs.read_bytes()
    with pytest.raises(InputError, match="has other names too"):
        join(folder)
    assert theirs.read_bytes() == before
    journal.unlink()
    journal.write_bytes(bytes(3 * 2**20))
    with pytest.raises(InputError):
        join(folder)
    assert journal.stat().st_size == 3 * 2**20


def test_a_torn_line_of_a_journal_is_cut(tmp_path):
    folder = tmp_path / "s"
    work(open_study(small_search(trials=1), out=folder))
    with (folder / "study.journal").open("a") as journal:
        journal.write('{"op_code": 5, "work')
    assert work(join(folder)).is_complete
    assert len(join(folder).study.finished) == 1


def test_a_journal_is_kept_where_the_file_system_has_no_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("natpinn.search.journal.fcntl.flock", refuse)
    assert work(open_study(small_search(trials=2), out=None)).is_complete
    study = open_study(small_search(trials=2), out=tmp_path / "s").study
    assert study.take() is not None


def test_a_journal_of_several_databases_deletes_nothing(tmp_path):
    folder, victim = tmp_path / "s", tmp_path / "victim"
    folder.mkdir()
    url = f"sqlite:///{folder}/trials.db"
    work(open_study(small_search(trials=1), out=folder, storage=url))
    victim.write_text("theirs")
    name = os.fsencode(victim)
    header = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + struct.pack(">IIIII", 0, 0, 1, 512, 4096)
    record = struct.pack(">I", 0xFFFFFFFF) + name + struct.pack(">II", len(name), sum(name))
    (folder / "trials.db-journal").write_bytes(header.ljust(512, b"\0") + record + header[:8])
    for storage in (None, url):
        with pytest.raises(InputError, match="is of several databases"):
            join(folder, storage=storage)
    assert victim.read_text() == "theirs"


def test_a_damaged_summary_of_a_trial_does_not_end_a_search(tmp_path):
    for summary in ({"final_l2": "x", "best_l2": 1.0}, {"final_l2": None}, {"final_l2": True}):
        assert final_error(summary | {"status": "finished", "best_l2": 0.1}) == np.inf


def test_a_study_with_a_tracker_elsewhere_has_to_be_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", None)
    folder = tmp_path / "s"
    work(open_study(small_search(trials=1), out=folder))
    path = folder / "study.toml"
    text = path.read_text()
    path.write_text(
        text.replace("[search.settings]", '[search.settings]\n"track.trackers" = ["wandb"]')
    )
    with pytest.raises(InputError, match="NATPINN_TRACKERS=wandb"):
        join(folder)


WRONG = {
    "no search": "[serch]\n",
    "a list": "search = [1]\n",
    "settings": "[search]\nsettings = 3\n[search.space]\n",
    "trials": '[search]\ntrials = "many"\nsettings = {}\nspace = {}\n',
    "10**40 trials": f"[search]\ntrials = 1{'0' * 40}\nspace = {{}}\n",
    "a sampler": "[search]\nsampler = [1]\nspace = {}\n",
    "prune": '[search]\nprune = "yes"\nspace = {}\n',
    "a seed": "[search]\nseed = -1\n",
    "another key": "[search]\nextra = 1\n",
    "storage": "storage = 3\n[search]\n",
    "model": "model = [1]\n[search]\n",
    "digits": "x = " + "1" * 5000,
    "nesting": "x = " + "[" * 100_000,
    "not text": b"\xff\xfe",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_study_of_the_wrong_types_is_explained(tmp_path, wrong):
    folder = tmp_path / "s"
    work(open_study(small_search(trials=1), out=folder))
    path = folder / "study.toml"
    content = WRONG[wrong]
    if isinstance(content, str) and content.startswith("[search]"):
        content = change(path.read_text(), content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as raised:
        join(folder)
    assert len(str(raised.value)) < 1000


def change(text, lines):
    """A study's file with some entries of [search] in place of its own."""
    for line in lines.splitlines()[1:]:
        key, equals, _ = line.partition(" = ")
        if not equals or (key in ("space", "settings") and line.endswith("{}")):
            continue
        kept = [old for old in text.splitlines() if not old.startswith(f"{key} = ")]
        if key == "settings":
            kept = [old for old in kept if "problem." not in old and "search.settings" not in old]
        place = kept.index("[search]") + 1
        text = "\n".join([*kept[:place], line, *kept[place:]])
    return text


def test_workers_and_chains_of_trials_that_make_no_sense_do_no_harm(tmp_path):
    folder = tmp_path / "s"
    bench = open_study(small_search(trials=2), out=folder)
    asked = [bench.study._optuna.ask() for _ in range(2)]
    for trial, (name, continues) in zip(asked, [("x|y|z", 1), ("no machine", 0)], strict=True):
        trial.set_user_attr("worker", name)
        trial.set_user_attr("seen", time.time())
        trial.set_user_attr("continues", continues)
    assert [t.continues for t in bench.study.trials()] == [None, 0]  # and no circle
    assert join(folder).study.take() is not None


def test_a_database_that_is_locked_is_waited_for_and_the_trial_counts_once(
    tmp_path, monkeypatch, capsys
):
    url = f"sqlite:///{tmp_path}/all.db?timeout=0.05"
    bench = open_study(small_search(trials=2), out=tmp_path / "s", storage=url)
    released, honest = threading.Event(), tuning.run

    def lock():
        other = sqlite3.connect(tmp_path / "all.db", check_same_thread=False)
        other.execute("BEGIN EXCLUSIVE")

        def release():
            other.rollback()
            other.close()
            released.set()

        threading.Timer(1.0, release).start()

    def run_and_lock(*arguments, **options):  # locked while the outcome is told, and after it
        solution = honest(*arguments, **options)
        lock()
        return solution

    monkeypatch.setattr(tuning, "run", run_and_lock)
    found = work(bench)
    assert released.wait(5)
    assert found.is_complete
    assert [trial.state for trial in found.trials] == ["finished"] * 2
    assert [trial.number for trial in found.trials] == [0, 1]
    assert "the database of the study is locked: waiting" in capsys.readouterr().err


def test_a_database_that_stays_locked_ends_with_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr(storages, "PATIENCE", 0.3)
    url = f"sqlite:///{tmp_path}/all.db?timeout=0.05"
    bench = open_study(small_search(trials=1), out=tmp_path / "s", storage=url)
    other = sqlite3.connect(tmp_path / "all.db")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="has been locked for"):
        work(bench)
    other.rollback()
    assert work(open_study(small_search(trials=1), out=tmp_path / "s", storage=url)).is_complete
