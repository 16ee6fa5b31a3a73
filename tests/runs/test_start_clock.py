"""What a run does before its first step is heard from JAX."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from natpinn.programs import compile_together
from natpinn.runs.start_clock import COMPILING, TRACING, StartClock


def test_time_in_which_several_programs_are_compiled_counts_once():
    clock = StartClock()
    clock._began = 0.0
    for event, start, end in (
        (TRACING[0], 1.0, 3.0),
        (TRACING[1], 2.0, 4.0),  # inside another, or beside it
        (COMPILING, 3.5, 6.0),
        (COMPILING, 5.0, 7.0),
        ("/jax/something/else", 0.0, 100.0),
    ):
        clock._ends(event, start, end)
    assert clock.compiling == pytest.approx(3.5)
    assert clock.tracing == pytest.approx(2.5)  # from 1.0 to 3.5


def test_a_clock_hears_what_is_compiled_while_it_listens():
    clock = StartClock()
    doing = []

    def function(x):
        doing.append(clock.doing)
        return jnp.tanh(x) + 1

    clock.start()
    eqx.filter_jit(function)(jnp.ones(7))
    clock.stop()
    assert doing == ["tracing"]
    heard = (clock.tracing, clock.compiling)
    assert min(heard) > 0
    eqx.filter_jit(lambda x: function(x) + 2)(jnp.ones(7))
    clock.stop()  # once more changes nothing
    assert (clock.tracing, clock.compiling) == heard


def test_what_was_compiled_together_is_not_compiled_again():
    first = eqx.filter_jit(lambda x: jnp.sin(x).sum() + 1)
    second = eqx.filter_jit(lambda x, y: jnp.cos(x) @ y)
    x, y = jnp.arange(5.0), jnp.ones(5)
    compile_together((first, (x,)), (second, (x, y)))
    clock = StartClock()
    clock.start()
    results = first(x), second(x, y)
    clock.stop()
    assert clock.compiling == 0
    assert results[0] == jnp.sin(x).sum() + 1
    assert results[1] == jnp.cos(x) @ y


def test_what_is_compiled_together_knows_the_settings_of_the_caller():
    square = eqx.filter_jit(lambda x: x @ x)
    x = jnp.ones((3, 3))
    with jax.default_matmul_precision("highest"):
        compile_together((square, (x,)), (eqx.filter_jit(lambda x: x + 1), (x,)))
        clock = StartClock()
        clock.start()
        square(x)
        clock.stop()
    assert clock.compiling == 0


def test_what_fails_to_compile_is_raised():
    def fails(x):
        raise ValueError("no such thing")

    works = eqx.filter_jit(lambda x: x + 1)
    with pytest.raises(ValueError, match="no such thing"):
        compile_together((works, (jnp.ones(3),)), (eqx.filter_jit(fails), (jnp.ones(3),)))
