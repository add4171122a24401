"""Which tools a message sees, and why."""
