"""The command line."""

import signal
import threading


def main() -> None:
    """The entry point. A Ctrl-C while modules are imported ends without a traceback."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    is_usual = is_usual and threading.current_thread() is threading.main_thread()
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from .app import main as run
        from .app import stop

        if is_usual:
            signal.signal(signal.SIGINT, stop)
        run()
    finally:
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
