"""Settings: loaded from files, variables and arguments, checked, and described."""
