"""Sizes in memory: as text, and of this machine."""

import contextlib
import ctypes
import os
import re
from pathlib import Path

import jax

from .errors import InputError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
HOST_BYTES = 5 * 10**7  # of a process, beside its steps
BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(text: str | int) -> int:
    """8GB, 512MiB or a number of bytes."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(i?)b?\s*", str(text).lower())
    try:
        assert found is not None
        number, unit, is_binary = found.groups()
        count = int(float(number) * (BINARY_UNITS if is_binary else UNITS)[unit])
        assert count > 0
    except (AssertionError, KeyError, ValueError, OverflowError) as error:
        raise InputError(f"a size in memory is written 8GB or 512MiB, got {text!r}") from error
    return count


def show_bytes(count: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if count >= unit:
            return (
                f"{count // unit:,} {name}"
                if count >= 1000 * unit
                else f"{count / unit:.3g} {name}"
            )
    return f"{count / 1000:.3g} kB"


def free_bytes() -> int:
    """What the device has free, or for a CPU the machine."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":") for line in lines)
        available = int(fields["MemAvailable"].split()[0]) * 1024
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            stats = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            cache = int(stats["active_file"]) + int(stats["inactive_file"])  # given back if needed
            used = int((group / "memory.current").read_text()) - cache
            available = min(available, int(most) - used)
    except (OSError, KeyError, ValueError):
        pass
    return available


def used_bytes() -> int:
    """What the device uses now, or for a CPU this process, with what compiling evaluations and
    drawing pictures will add."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_in_use" in stats:
        return int(stats["bytes_in_use"])
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") + HOST_BYTES
    except OSError:
        return 0


def require(count: int, what: str, remedy: str) -> None:
    """Raise where so many bytes are not free, before an allocation fails."""
    free = free_bytes()
    if count > free:
        raise InputError(
            f"{what} would take {show_bytes(count)}, and {show_bytes(free)} are free: {remedy}"
        )


def release() -> None:
    """Give back what compiling has left unused: on a CPU it is memory of the same process."""
    with contextlib.suppress(OSError, AttributeError):  # another C library keeps less
        ctypes.CDLL("libc.so.6").malloc_trim(0)
