"""Makes the stage beside this file importable."""
