"""Pictures of what was learned."""

from .picture import draw_solution as draw_solution
from .scaling import draw_scaling as draw_scaling
