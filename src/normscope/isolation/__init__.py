"""Measuring leaves no trace: lend a model, a batch and a loss; put everything back; replay module calls; processes."""
