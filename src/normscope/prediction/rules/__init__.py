"""Rules of operations: one file for each family, registered by decorator. Importing the package registers them all.

To add a family, add a file here with functions under `@rule`; every file of this folder is imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from normscope.prediction.rules.elementwise_map import activation
from normscope.prediction.rules.registry import rule, rule_of_module

__all__ = ["activation", "rule", "rule_of_module"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
