"""Isolation: a measurement works on copies of model, batch, loss and optimizer, and everything is put back after it.

lending             lends copies of a model's tensors, and puts the originals back: the entrance, `untouched`
module_contents     finds everything that modules hold
present_entries     the entries of containers at one moment, and their restoring
containers          reads and restores containers without running the user's code
tensor_copies       copies of single tensors
batch_copies        lends copies of a batch and of a loss to one pass
first_forward       a guard over the first pass, for writes into tensors that are not copied
outside_tensors     tensors that a loss depends on and that are no parameters of the model
generators          reads and restores random generators
loaders             reads batches of a loader, and gives them to training all the same
batches             reads the `batches` argument of a verb
batch_loss          the loss of one batch as a function of the parameters
coming_update       the step that the optimizer is about to make
module_calls        the order of calls in a pass; answers calls from stored outputs
checkpointing       runs reentrant checkpoints as non-reentrant ones
flat_vectors        joins tensors into one vector, and splits it
processes           averages numbers over the processes of one run
one_at_a_time       lets one thread measure at a time
signals             delays signals while a context is entered or left
unwrapping          the module inside `torch.compile` and DDP
memory_bound        a bound on the memory of copies
refusals            the exceptions of this package
"""
