"""Shared by all tests: compiled programs are not kept on disk, so that every run starts equal."""

import os

os.environ["NATPINN_NO_CACHE"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
