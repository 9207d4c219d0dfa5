"""What monitoring programs read over HTTP: metrics, health, and facts about this process."""
