"""Importing other code.

named_functions     a user's function named `file.py:name` or `package.module:name`
extras              libraries of optional extras, imported on use
first_use           public names of a package that load on first use
"""
