"""Pictures of what was learned."""

from .picture import draw_solution as draw_solution
