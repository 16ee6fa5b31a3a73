"""Who a process is, and whether another one is still there."""

import contextlib
import os
import re
import socket
from pathlib import Path

NAME = re.compile(r"([^|]*)\|(\d{1,9})\|([^|]*)", re.ASCII)  # machine, process number, start
BOOT = Path("/proc/sys/kernel/random/boot_id")


def name() -> str:
    """This process: machine, process number, and when it started."""
    return f"{_machine()}|{os.getpid()}|{_started(os.getpid())}"


def is_gone(other: str) -> bool | None:
    """Whether a process has ended; None if it is on another machine, where nobody can tell."""
    if (found := NAME.fullmatch(other)) is None:
        return None
    machine, process, started = found.groups()
    if machine != _machine():
        return None
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return _started(int(process)) != started


def _machine() -> str:
    """This machine since it was booted, or the container that has process numbers of its own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [BOOT.read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def _started(process: int) -> str:
    """When a process started, in ticks since boot; a number may be given to another one later."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "?"
    return fields[19]
