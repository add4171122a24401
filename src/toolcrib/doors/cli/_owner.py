"""The names under which the owner of a state folder calls, and which no token may have.

A caller is its name: kept results, idempotency keys, approvals, rules and budgets go by it. What a token may
do is not said here.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from contextlib import suppress

from toolcrib.config import Environment
from toolcrib.trust.hygiene import skeleton


def is_owners(environment: Environment) -> Callable[[str], bool]:
    """Return what tells whether a name is the owner's, or easily taken for it.

    The system's name counts as well: a service without USER calls under another name than its user's shell.
    """
    names = {environment.user}
    with suppress(KeyError):
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    shapes = frozenset(map(skeleton, names))
    return lambda name: skeleton(name) in shapes
