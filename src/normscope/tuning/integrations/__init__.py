"""Callbacks that tune the learning rate in other training libraries; each file needs its extra."""
