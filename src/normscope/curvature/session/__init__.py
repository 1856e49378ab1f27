"""A session: a lent network on its batches, in which products and eigenvalue searches are made.

opening             lends the model, casts it, chooses the parameters
session             the session: networks on batches, searches
options             its settings
first_pass          loss, gradient, kind of the loss
cached_weights      the weights of several batches, computed once
observations        what its passes have shown, for notes
"""
