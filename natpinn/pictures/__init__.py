"""Pictures of problems, solutions and measurements."""
