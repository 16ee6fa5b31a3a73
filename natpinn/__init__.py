"""natpinn: physics-informed neural networks trained with natural gradients."""

import jax

jax.config.update("jax_enable_x64", True)  # before any array is made

from . import problems as problems
from .condition import Condition as Condition
from .domains import Box as Box
