"""Where equations and optimizers meet: residuals, Jacobians and kernels of one batch."""
