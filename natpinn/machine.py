"""Where a run takes place."""

import sys
from typing import Any

import jax


def machine() -> dict[str, Any]:
    """Where a run took place: device, versions and peak memory so far."""
    from importlib.metadata import version

    from . import __version__

    device = jax.local_devices()[0]
    packages = ("jax", "equinox", "optax", "folx", "numpy")
    return {
        "device": f"{device.device_kind} ({device.platform})",
        "versions": {
            "natpinn": __version__,
            "python": sys.version.split()[0],
            **{name: version(name) for name in packages},
        },
        "peak_memory_bytes": _peak_memory(device),
    }


def _peak_memory(device: Any) -> int:
    """The most memory that the device, or on a CPU the process, has used."""
    stats = device.memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
