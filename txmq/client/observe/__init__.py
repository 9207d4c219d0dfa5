"""Hooks that observe sends and handlers: the message trace of stock clients, and OpenTelemetry."""
