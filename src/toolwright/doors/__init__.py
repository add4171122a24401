"""Doors translate between people or programs and the workshop; they never decide anything."""
