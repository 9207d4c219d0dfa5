"""Settings of every part: read from files, variables and arguments, checked, and described."""
