"""What goes wrong in tests: kills, full disks, cut networks, hostile peers."""
