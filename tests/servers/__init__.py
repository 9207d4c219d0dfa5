"""Programs that tests start, such as databases, browsers and brokers, and what they need."""
