"""The pages of the console, one module for each part of a cluster.

Each module has ``routes``: its pages, and the changes that visitors can make there.
"""
