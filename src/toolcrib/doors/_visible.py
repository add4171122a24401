"""Text from declarations and tools as people may look at it: what would hide or act is written as escapes.

Only for eyes. A model gets the text that its format promises, and nothing is decided by what is shown.
"""

from __future__ import annotations

import re
from typing import Final

# Attack: a description that moves the cursor, recolours the terminal or reverses the reading direction to
# show something other than what is there.
# A text, which ``re`` compiles at its first use and keeps: that takes as long as loading a module or two, and
# a call whose answer goes to a program shows nothing.
HIDDEN: Final = (
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_KEPT: Final = ("\n", "\t")


def printable(text: str) -> str:
    """The text on one line, with characters that a terminal would act on, or hide, written as escapes."""
    return re.sub(HIDDEN, _escape, text)


def visible(text: str) -> str:
    """As ``printable``, for pages: lines and tabs stay, which a browser shows as they are."""
    return re.sub(HIDDEN, lambda match: match[0] if match[0] in _KEPT else _escape(match), text)


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")
