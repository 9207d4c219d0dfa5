"""Makes the stage next to this file importable."""
