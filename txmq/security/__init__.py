"""TLS, credentials and signatures, and files that are read again when they change."""
