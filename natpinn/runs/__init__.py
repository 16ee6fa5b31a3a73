"""Runs: configurations, folders, checkpoints, solutions."""
