"""The SMAC micromanagement tasks as a simulator in JAX: SMAC's rules and interface without StarCraft II."""
