"""Secrets by reference: names stand in configurations, values in a vault, which they leave for one start.

Says which secrets a tool's variables refer to, and looks them up at the moment of the start. Where values are
kept is ``vault.py``, which is made and imported only when one is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from toolcrib.errors import StoreError

PASSPHRASE: Final = "TOOLCRIB_VAULT_PASSPHRASE"
"""The variable that may hold the vault's passphrase; ``config.py`` reads it. No tool is ever handed it."""


class Values(Protocol):
    """Where values are kept. Raises StoreError where one cannot be had."""

    def holds(self, name: str, /) -> bool: ...

    def get(self, name: str, /) -> str | None: ...


class Withheld(Exception):
    """A secret that a start needs and cannot have; the message names it and never tells it."""

    def __init__(self, reason: str, hint: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Secrets:
    """Which variables mean which secrets. Looked up for each start; nothing is kept in between."""

    def __init__(
        self, vault: Callable[[], Values] | None = None, references: Mapping[str, str] | None = None
    ) -> None:
        """``vault`` is asked for once a value is looked up. ``references``: variables of ``[secrets]``, and
        the secrets they stand for."""
        self._vault = vault
        self._references = dict(references or {})

    def candidates(self, names: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
        """The variables whose values may come out of the vault: those that ``[secrets]`` names, and those
        that the host itself wrote down for the tool (``own``), which mean the secret of the same name.

        Attack: a declaration that asks for every usual name, and so empties the vault into its tool. What
        only a declaration names comes from the vault only where ``[secrets]`` says so.
        """
        if self._vault is None:
            return ()
        found = [name for name in names if name in self._references]
        return tuple(dict.fromkeys((*found, *own)))

    def values(self, candidates: Iterable[str]) -> dict[str, str]:
        """The values there are. Raises Withheld where one must be there and cannot be had."""
        found: dict[str, str] = {}
        if self._vault is None:
            return found
        vault = self._vault()
        for variable in candidates:
            name = self._references.get(variable, variable)
            try:
                value = vault.get(name) if vault.holds(name) else None
            except StoreError as error:
                raise Withheld(f"the secret {name!r} cannot be had: {error.message}", error.hint) from None
            if value is not None:
                found[variable] = value
            elif variable in self._references:
                raise _missing(name, variable)
        return found

    def check(self, candidates: Iterable[str]) -> None:
        """Whether the values that must be there are. Raises Withheld; no value is looked at."""
        wanted = [*candidates]
        if self._vault is None or not wanted:
            return
        vault = self._vault()
        for variable in wanted:
            name = self._references.get(variable, variable)
            try:
                is_there = vault.holds(name)
            except StoreError as error:
                raise Withheld(f"the secret {name!r} cannot be had: {error.message}", error.hint) from None
            if not is_there and variable in self._references:
                raise _missing(name, variable)


def _missing(name: str, variable: str) -> Withheld:
    return Withheld(
        f"the secret {name!r} is not in the vault ([secrets] {variable})", f"toolcrib secret set {name}"
    )
