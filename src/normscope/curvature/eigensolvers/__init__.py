"""Eigensolvers: they know a matrix by its products with vectors, and no network."""
