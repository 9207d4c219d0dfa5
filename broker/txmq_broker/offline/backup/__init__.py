"""Backups of a broker's directory: created while the broker runs, verified and restored.

A folder holds one backup. Its manifest names the copied files and holds the small tables; each
``create`` copies the new data and then replaces the manifest.
"""
