"""The command line: natpinn list | solve | resume | report | plot | tune | experiment | bench."""

import io
import os
import signal
import sys
import threading
import warnings
from types import FrameType
from typing import Annotated, Any

import typer

from .. import __version__
from ..errors import InputError, NatpinnWarning
from ..search.storage import hide_password, said_storage
from ..training.signals import STOPPED, Interrupts, say
from .bench import bench_app
from .experiment import experiment_app
from .names import list_names
from .report import plot_command, report_command
from .resume import resume
from .solve import solve
from .tune import tune_command

app = typer.Typer(
    name="natpinn",
    help="Solve PDEs with neural networks trained by natural gradients.",
    epilog="Start with:  natpinn solve poisson_2d --budget 10",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
LONGEST = 1000  # letters of an error
DEBUG = "NATPINN_DEBUG"  # the environment variable that shows tracebacks


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"natpinn {__version__}")
        raise typer.Exit


@app.callback()
def natpinn(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Solve PDEs with neural networks trained by natural gradients."""


app.command("list")(list_names)
app.command("solve")(solve)
app.command("resume")(resume)
app.command("report")(report_command)
app.command("plot")(plot_command)
app.command("tune")(tune_command)
app.add_typer(experiment_app, name="experiment")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run a command line: errors are one line on stderr, with exit code 2."""
    _open_streams()
    before = sys.unraisablehook
    sys.unraisablehook = _stop_again
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            _run()
    finally:
        sys.unraisablehook = before


def stop(number: int, frame: FrameType | None) -> None:
    """A Ctrl-C while modules are imported or JAX traces ends the process at once.

    C code between Python's functions would print a traceback, or lose the exception. Nothing is
    being written then: a run waits for the end of a step.
    """
    while frame is not None:
        package, _, _ = str(frame.f_globals.get("__name__")).partition(".")
        if package in ("importlib", "jax"):
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _stop_again(lost: Any) -> None:
    """Repeat a Ctrl-C that came inside a callback of C code, which Python drops there."""
    if lost.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, signal.raise_signal, [signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(lost)


def _open_streams() -> None:
    """What was closed is /dev/null, or the next file would get its number, and what is printed.

    Letters that a stream cannot show, as in an ASCII locale, are spelled.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the smallest number that is free
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> None:
    Interrupts.exits_at_once = True
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if isinstance(code, int) and code:  # of typer.Exit
            sys.exit(code)
    except InputError as error:
        _fail(str(error))
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(STOPPED)
    except (RuntimeError, MemoryError, OSError) as error:  # JAX found no device, a disk is gone
        _fail(str(error).strip().split("\n")[0] or type(error).__name__)
    except Exception as error:
        if hasattr(error, "format_message"):
            message = error.format_message()  # pyright: ignore  # a usage error of click
            if type(error).__name__ != "NoArgsIsHelpError":
                _fail(message)
            print(message)
        elif DEBUG in os.environ:
            raise
        else:
            what = str(error).strip().split("\n")[0]
            _fail(f"unexpected {type(error).__name__}: {what} (set {DEBUG}=1 to see where)")
    finally:
        Interrupts.exits_at_once = False


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Warnings of natpinn for people; those of libraries are for developers."""
    if issubclass(category, NatpinnWarning):
        say(f"natpinn: warning: {hide_password(str(message)[:LONGEST], *_addresses())}")


def _addresses() -> list[str]:
    """The words of the command line that may have a password."""
    return [word[:LONGEST] for word in [*sys.argv, said_storage() or ""] if "://" in word]


def _fail(message: str) -> None:
    line = " ".join(message.split())
    if len(line) > LONGEST:  # a name or a number may have any length
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    line = hide_password(line, *_addresses())
    say(f"natpinn: {line}")
    sys.exit(2)
