"""Networks, and what of a model is trained."""
