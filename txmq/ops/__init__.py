"""What operators see and change, as plain functions and values.

The commands and the console print them; neither computes anything itself.
"""
