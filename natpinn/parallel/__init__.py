"""How a step is computed: what is held, how much at once, on which devices and processes."""
