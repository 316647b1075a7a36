"""How fast training is, phase by phase, beside what this machine could do at best; and how the cost grows with each size."""

from quantail.bench.measure import Measured, measure
from quantail.bench.scene import Sizes

__all__ = ["Measured", "Sizes", "measure"]
