"""Memory plans and batch sizes, from shapes."""
