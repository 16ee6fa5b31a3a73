"""Pictures of what was learned, and reports of many runs."""

from .curves import draw_curves as draw_curves
from .html import write_report as write_report
from .picture import draw_solution as draw_solution
from .runs import collect as collect
from .runs import read_published as read_published
from .scaling import draw_scaling as draw_scaling
