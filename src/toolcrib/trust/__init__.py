"""Who may run what."""
