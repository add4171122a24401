"""What happened: the durable, tamper-evident record of every call.

``chain.py`` says what a record and its link are, ``segments.py`` writes them, ``audit.py`` says what
stands in them; ``reading.py``, ``index.py`` and ``usage.py`` read them for people. Nothing here decides
whether a call may run: a call that cannot be recorded is refused by the engine, which asks ``audit.py``.
"""
