"""What a run does before its first step: tracing, compiling, and for how long."""

import contextlib
import time

import jax

COMPILING = "/jax/core/compile/backend_compile_duration"
TRACING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)


class StartClock:
    """Listens to what JAX says of itself.

    Programs are compiled side by side, and their times overlap: `compiling` counts seconds in which
    any was compiled, or loaded from the user's cache, and `tracing` those in which functions were
    traced and none was compiled.
    """

    def __init__(self) -> None:
        self._began = time.time()
        self._spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        self._is_listening = False
        self._open = 0  # programs that are being compiled

    @property
    def seconds(self) -> float:
        """Since the clock was made."""
        return time.time() - self._began

    @property
    def doing(self) -> str:
        return "compiling" if self._open else "tracing"

    @property
    def compiling(self) -> float:
        return _length(self._spans[True])

    @property
    def tracing(self) -> float:
        both = self._spans[True] + self._spans[False]
        return _length(both) - self.compiling

    def __str__(self) -> str:
        """How long it took, and what most of it was."""
        parts = f"{self.tracing:.1f} s tracing, {self.compiling:.1f} s compiling"
        return f"{self.seconds:.1f} s ({parts})"

    def start(self) -> None:
        self._is_listening = True
        jax.monitoring.register_scalar_listener(self._begins)
        jax.monitoring.register_event_time_span_listener(self._ends)

    def stop(self) -> None:
        if not self._is_listening:
            return
        self._is_listening = False
        with contextlib.suppress(AssertionError, ValueError):  # others may have removed all
            jax.monitoring.unregister_scalar_listener(self._begins)
        with contextlib.suppress(AssertionError, ValueError):
            jax.monitoring.unregister_event_time_span_listener(self._ends)

    def _begins(self, event: str, *_: float, **__: object) -> None:
        if event == COMPILING:
            self._open += 1

    def _ends(self, event: str, start_time: float, end_time: float, **_: object) -> None:
        if event == COMPILING:
            self._open -= 1
        if event == COMPILING or event in TRACING:
            self._spans[event == COMPILING].append((max(start_time, self._began), end_time))


def _length(spans: list[tuple[float, float]]) -> float:
    """The length of the union of some intervals."""
    total, reached = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
