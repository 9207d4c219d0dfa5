"""Inspects, repairs and backs up a broker's directory from outside the broker."""
