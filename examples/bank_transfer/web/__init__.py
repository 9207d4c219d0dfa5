"""What the banks show by HTTP: an API for programs, and pages for customers and tellers."""
