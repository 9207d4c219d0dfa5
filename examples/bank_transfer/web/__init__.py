"""The banks over HTTP: an API for programs, and pages for customers and tellers."""
