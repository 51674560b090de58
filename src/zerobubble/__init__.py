"""Pipeline-parallel training for any PyTorch model without idle time."""
