"""The command line."""

import signal
import threading


def main() -> None:
    """The entry point. A Ctrl-C while the commands are imported ends without a traceback."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if is_main else None
    try:
        from .app import main as run
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    run()
