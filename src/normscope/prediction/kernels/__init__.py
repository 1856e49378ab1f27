"""Kernels of tensors and of the gradients that come back to them, and the eigenvalues read off them."""
