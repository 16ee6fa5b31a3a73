"""Searches for hyper-parameters, and experiments."""
