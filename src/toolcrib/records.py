"""The base class of frozen values with fields that must not be printed."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct


class Discreet(Struct, frozen=True):
    """Leaves the fields named in ``HIDDEN`` out of its repr: secrets, arguments, and whole documents.

    Attack: a secret that a traceback, a log line or a debugger's view prints with the value that holds it.
    """

    HIDDEN: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = [name for name in self.__struct_fields__ if name not in self.HIDDEN]
        return [(name, getattr(self, name)) for name in names]
