"""Directories and tables that released versions wrote, opened by this version."""
