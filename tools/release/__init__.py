"""Builds what a release publishes, and tries it as strangers would; docs/internals/release.md."""
