"""Differential operators, and equations that hold on a set of points."""
