"""Kernels of tensors and of the gradients that come back to them, with their averages over sites."""
