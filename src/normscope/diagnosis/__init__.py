"""Diagnosis: what is wrong with the normalization of a training, and what each fix would gain."""
