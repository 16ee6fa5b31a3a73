"""Sets of points, and how points are drawn from them."""
