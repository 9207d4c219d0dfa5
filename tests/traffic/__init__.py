"""What clients do to a broker in tests, and whether what they saw is right."""
