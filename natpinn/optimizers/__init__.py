"""Optimizers: each sees a LeastSquares problem on one batch, and nothing of the equation."""
