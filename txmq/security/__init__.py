"""TLS, credentials and signatures, and files that are reloaded when they change."""
