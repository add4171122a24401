"""Doors translate between people or programs and the crib; they never decide anything."""
