"""Tables and curves of many runs."""
