"""`predict`: lambda_max and the stability limit eta* of a network before training, from mean-field theory.

Start with `predict_network.py`, which calls the other files:

    graph/                  traces the model and evaluates its operations one by one
    rules/                  what each operation does, one file for each family of operations
    kernels/                what the rules get and return: fields forward, cotangents backward
    walk.py, tape.py        what the rules add up on the way forward, and the way back
    mode_eigenvalues.py     lambda_max from what the layers have added
    result.py               the answer

The words of these files:

    kernel          a table of second moments, mean over random weights: K(x, y) = E[z(x) z(y)], z one channel's value
    place           where z is taken: one pixel of one sample, or one sample where samples are vectors
    field           a tensor of the network described by kernels; rules compute fields in the place of tensors
    cotangent       the gradient of the output with respect to a tensor, described by kernels as a field is
    tape            the list of all operations of the way forward, each with a function that sends cotangents back
    share           what the parameters of one layer add to lambda_max: cotangent times field, summed over places
    mean mode       the direction in which the outputs of all samples move alike
    data modes      the directions in which samples move apart; lambda_max is the largest of both kinds
    gamma, beta     a normalizer's trained scale and shift, also called weight and bias in torch
    as trained      derivatives go through the batch's mean and variance
    held            derivatives take the batch's mean and variance as constants
    tangent kernel  products of two places' gradients, summed over all weights: how far x moves when y is learned
    drift           derivative of the output's tangent kernel with respect to a field's kernel
    held pair       two kernels of two samples, with statistics held: the cotangent's, and the drift
"""

from normscope.prediction.predict_network import predict
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.result import Prediction
from normscope.prediction.rules.activations import elementwise_module

__all__ = ["Prediction", "UnknownOperation", "elementwise_module", "predict"]
