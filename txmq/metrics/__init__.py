"""Tables of metrics, their Prometheus text, and the HTTP server for monitoring pages."""
