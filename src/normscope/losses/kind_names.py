"""The names of the kinds of loss. This file imports no torch, so that a page of stored results can read it."""

SQUARED, CROSS_ENTROPY, OTHER = "squared", "cross_entropy", "other"
