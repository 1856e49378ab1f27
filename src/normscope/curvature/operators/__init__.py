"""Operators: products of the Hessian, the Gauss-Newton and the Fisher matrix with vectors."""
