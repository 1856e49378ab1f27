"""Theory: numbers from formulas, no models inside.

Maps of kernels, which `predict` uses:

site_pairs              the forms of a kernel: which pairs of sites and samples it holds
gaussian                activations: expectations over pairs of Gaussian values
marginals               activations of values that are not Gaussian
maxima                  max pooling
normalizing             batch normalization
taps                    windows that slide over images
convolved_kernels       convolutions and average pooling
softmax                 curvature of cross-entropy

From kernels to eigenvalues:

modes                   largest eigenvalues of the mean mode and of the data modes
gradient_overlaps       overlaps of samples' own gradients
lengths                 differences in length between samples
place_lengths           differences in length between places

Formulas of the sources:

printed, recursions     Wei et al. 2019 as printed
inequalities            the theorems of Santurkar et al. 2018
explosion, sphere       growth of gradients along depth, and its quadrature
"""
