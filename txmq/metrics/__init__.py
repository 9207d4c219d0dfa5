"""Metrics: tables of them, their text for Prometheus, and the HTTP server of monitoring pages."""
