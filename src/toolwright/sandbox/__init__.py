"""The hands that start processes, one module per level of isolation.

``portable`` works on any system and restricts least; the stronger levels stand beside it. Nothing here knows
formats or catalogs: what may run, with which environment and limits, is decided above and handed in.
"""
