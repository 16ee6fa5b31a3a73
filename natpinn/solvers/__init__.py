"""Solvers of damped linear least squares, one per file."""
