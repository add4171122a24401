"""The console: what there is and what happens, as pages for people. ``routes.py`` is its entrance."""
