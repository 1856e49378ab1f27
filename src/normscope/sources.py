"""The sources of the computations, as BibTeX, and the sources that each verb uses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A source as BibTeX. about: what normscope takes from it.

    seed: the name in docstrings, where several places use it; empty where docstrings give the arXiv number.
    """

    key: str
    kind: str
    fields: Mapping[str, str]
    about: str
    seed: str = ""

    def bibtex(self) -> str:
        """The BibTeX entry."""
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in self.fields.items())
        return f"@{self.kind}{{{self.key},\n{lines}\n}}"


def _paper(key: str, author: str, title: str, year: str, number: str, about: str, seed: str = "") -> Source:
    fields = {"author": author, "title": title, "year": year, "eprint": number, "archivePrefix": "arXiv"}
    return Source(key, "misc", fields, about, seed)


SOURCES = (
    Source(
        "santurkar2018how",
        "inproceedings",
        {
            "author": "Santurkar, Shibani and Tsipras, Dimitris and Ilyas, Andrew and Madry, Aleksander",
            "title": "How Does Batch Normalization Help Optimization?",
            "booktitle": "Advances in Neural Information Processing Systems",
            "year": "2018",
            "eprint": "1805.11604",
            "archivePrefix": "arXiv",
        },
        "landscapes, covariate shift, noisy BatchNorm, the theorems of bounds",
        "Santurkar et al. 2018",
    ),
    _paper(
        "wei2019mean",
        "Wei, Mingwei and Stokes, James and Schwab, David J.",
        "Mean-field Analysis of Batch Normalization",
        "2019",
        "1903.02606",
        "order parameters, lambda_max and eta* before training, the phase diagram",
        "Wei et al. 2019",
    ),
    _paper(
        "kohler2018exponential",
        "Kohler, Jonas and Daneshmand, Hadi and Lucchi, Aurelien and Zhou, Ming and Neymeyr, Klaus and Hofmann, Thomas",
        "Exponential convergence rates for Batch Normalization: The power of length-direction decoupling in "
        "non-convex optimization",
        "2018",
        "1805.10694",
        "GDNP and its convergence rates",
    ),
    _paper(
        "yang2019mean",
        "Yang, Greg and Pennington, Jeffrey and Rao, Vinay and Sohl-Dickstein, Jascha and Schoenholz, Samuel S.",
        "A Mean Field Theory of Batch Normalization",
        "2019",
        "1902.08129",
        "the growth of gradients along depth",
    ),
    _paper(
        "ioffe2015batch",
        "Ioffe, Sergey and Szegedy, Christian",
        "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift",
        "2015",
        "1502.03167",
        "BatchNorm itself",
    ),
    _paper(
        "meyer2020hutch",
        "Meyer, Raphael A. and Musco, Cameron and Musco, Christopher and Woodruff, David P.",
        "Hutch++: Optimal Stochastic Trace Estimation",
        "2020",
        "2010.09649",
        "the trace of a curvature matrix",
    ),
)
NORMSCOPE = Source(
    "normscope",
    "software",
    {"title": "normscope: an instrument for normalization in neural networks", "year": "2026"},
    "this instrument",
)
_BY_VERB = {
    "demo": ("ioffe2015batch", "santurkar2018how"),
    "predict": ("wei2019mean",),
    "measure": ("wei2019mean",),
    "diagnose": (),
    "tune": (),
    "spectrum": ("meyer2020hutch",),
    "monitor": ("santurkar2018how",),
    "sweep": ("wei2019mean",),
    "bounds": ("santurkar2018how",),
    "theory": ("wei2019mean", "yang2019mean"),
    "solve": ("kohler2018exponential",),
    "reproduce": ("santurkar2018how", "wei2019mean", "kohler2018exponential", "yang2019mean", "ioffe2015batch"),
}
USES = tuple(_BY_VERB)


def sources_for(uses: Iterable[str]) -> list[Source]:
    """The sources of these verbs (of all verbs if none is named), with normscope itself first."""
    keys = {key for use in uses for key in _BY_VERB[use]}
    return [NORMSCOPE, *(source for source in SOURCES if not keys or source.key in keys)]
