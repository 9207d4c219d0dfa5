"""Makes the strategies in this folder importable."""
