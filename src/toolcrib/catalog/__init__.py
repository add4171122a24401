"""What there is: finding declarations, reading them, and the immutable shelf they end up on."""
