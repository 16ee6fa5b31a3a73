"""The command line: natpinn list | solve | resume | report | plot | tune | experiment | bench."""

import os
import sys
import warnings
from typing import Annotated

import typer

from .. import __version__
from ..errors import InputError, NatpinnWarning
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
    """The entry point: errors are one line on stderr, with exit code 2."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        _run()


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
        say(f"natpinn: warning: {message}")


def _fail(message: str) -> None:
    say(f"natpinn: {' '.join(message.split())}")
    sys.exit(2)
