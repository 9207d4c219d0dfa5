"""Makes the strategies beside this file importable."""
