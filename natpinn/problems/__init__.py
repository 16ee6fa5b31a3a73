"""PDEs with their conditions, and those that natpinn knows by name."""

from .catalogue import CATALOGUE as CATALOGUE
from .catalogue import get as get
