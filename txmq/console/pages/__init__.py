"""The pages of the console, one module for each part of a cluster.

Each module has ``PAGES``, and ``CHANGES`` if visitors can change something there.
"""
