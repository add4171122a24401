"""What is known about a tool's bytes at this moment: the very bytes that a call would run.

A tool of a format with signatures is what several files make it: its own, every runtime of its chain, its
server, and the files that it loads. All of them are verified before anything starts, and the first bad one is
named. What was compiled from a file counts only while the file is still the one that was compiled, and what a
call runs only while it is what was verified here: whatever was replaced in between is refused, not run.

Nothing here decides: ``policy.py`` does, by what is found. Nothing here knows what a signature is:
``signing.py`` does; nor what a lock says: ``gate.py`` asks ``pinning.py`` afterwards. Files are looked at
through what ``app.py`` hands in, and only those that changed are read and verified again, since every call
asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.model import Signature, Tool, ToolCall, Trust, Vetted
from toolcrib.trust import signing
from toolcrib.trust.seen import SignedFile

_CHECKED_MAX: Final = 16384
_TOOLS: Final = "/.ai/tools/"
_YAML: Final = (".yaml", ".yml")
_ID: Final = re.compile(rb"""^tool_id:[ \t]*["']?([\w./-]{1,256})""", re.MULTILINE)
"""The id that a YAML item gives itself. Python and JavaScript items give themselves none."""
_AGAIN: Final = "call it again once nobody is writing to them"


class File(Protocol):
    """A file as it was looked at."""

    @property
    def path(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def content(self) -> bytes | None: ...


class Files(Protocol):
    """Files by path: the same object as before while a file is the same."""

    def file(self, path: str, /) -> File | None: ...


class Loads(Protocol):
    """The files besides its own that a tool may load."""

    @property
    def files(self) -> Sequence[File]: ...
    def digest(self) -> str: ...


class Surroundings(Protocol):
    """What the rooms below know of a tool."""

    def own_files(self, tool: Tool, /) -> tuple[str, ...]:
        """The files that a call runs."""
        ...

    def runs(self, tool: Tool, own: Sequence[File | None], /) -> str | None:
        """The digest of what would run with these files, as calls carry it."""
        ...

    def loads(self, tool: Tool, /, *, is_signed: bool) -> Loads | Vetted | None:
        """The files that it may load; or what is amiss with them; None where it loads none."""
        ...


class Vetting(Struct, frozen=True):
    """What was found about a signed tool, and all that was looked at to find it."""

    tool: Tool
    keys: tuple[tuple[str, signing.Keys], ...]
    """The keys that counted, each with a file for which they did."""
    paths: tuple[str, ...]
    held: tuple[File | None, ...]
    asked: Trust
    """As what it was asked which files it loads."""
    loaded: Sequence[File]
    runs: str | None
    vetted: Vetted
    signed: tuple[SignedFile, ...]
    """All files that were verified, its own first, where the tool is signed."""


class Vetter:
    """Any thread may ask."""

    def __init__(
        self,
        files: Files,
        keys: Callable[[str], signing.Keys],
        around: Surroundings,
        *,
        is_development: bool = False,
        takes_unsigned: bool = False,
    ) -> None:
        """``keys``: those that count for a file, the same object for as long as they are the same.
        ``is_development``: whatever is amiss with a signature is told, loudly, and stops nothing.
        ``takes_unsigned``: unsigned files run, so that one blocks no tool that needs it."""
        self._files = files
        self._keys = keys
        self._around = around
        self.is_development = is_development
        self._takes_unsigned = takes_unsigned
        self._checked: dict[str, tuple[File, signing.Keys, Vetted, SignedFile | None]] = {}

    def vet(self, tool: Tool, known: Vetting | None = None) -> Vetting | None:
        """What is known about a tool's bytes as they lie there; None where its format has no signatures.

        ``known``: what was found about this tool before. It is given again while every file and key that was
        looked at is the same.
        """
        if tool.signature is None:
            return None
        return known if known is not None and self._still(known) else self._look(tool, tool.signature)

    def vetted(self, found: Vetting, call: ToolCall | None) -> Vetted:
        """What is known about the bytes that a call would run."""
        # Attack: bytes that were recorded for this call, swapped for signed ones while these are verified,
        # and swapped back before they run. What was verified must be what was recorded.
        if call is not None and call.runs_digest != found.runs and found.vetted.trust is Trust.SIGNED:
            return self.waived(
                Vetted(
                    trust=Trust.TAMPERED,
                    message="the tool's files changed between being recorded and being verified",
                    hint=_AGAIN,
                )
            )
        return found.vetted

    def vet_config(self, path: str, content: bytes, item: str) -> Vetted:
        """What is known about the bytes of a configuration file. ``item`` is its address: ``config:ID``."""
        suffix = "." + path.rpartition(".")[2]
        keys = self._keys(path)
        return self.waived(signing.check(content, path=path, suffix=suffix, item=item, keys=keys))

    def _still(self, known: Vetting) -> bool:
        if not all(map(is_, map(self._files.file, known.paths), known.held)):
            return False
        for path, keys in known.keys:
            if self._keys(path) is not keys:
                return False
        loads = self._loads(known.tool, known.asked)
        if isinstance(loads, Vetted):
            return False
        now = loads.files if loads is not None else ()
        return len(now) == len(known.loaded) and all(map(is_, now, known.loaded))

    def _loads(self, tool: Tool, trust: Trust) -> Loads | Vetted | None:
        if trust not in (Trust.SIGNED, Trust.UNSIGNED):  # what is refused anyway is looked at no further
            return None
        return self._around.loads(tool, is_signed=trust is Trust.SIGNED)

    # -- looking --------------------------------------------------------------------------------------------

    def _look(self, tool: Tool, signature: Signature) -> Vetting:
        own = self._around.own_files(tool)
        elements = (signature, *signature.others)
        paths = tuple(dict.fromkeys((*(element.path for element in elements), *own)))
        held = tuple(map(self._files.file, paths))
        by_path = dict(zip(paths, held, strict=True))
        counted: dict[int, tuple[str, signing.Keys]] = {}

        def keys_of(path: str) -> signing.Keys:
            keys = self._keys(path)
            counted.setdefault(id(keys), (path, keys))
            return keys

        verified: dict[str, SignedFile] = {}
        own_file, *others = [
            self._element(element, by_path[element.path], keys_of(element.path), verified)
            for element in elements
        ]
        needed = list(zip((element.path for element in signature.others), others, strict=True))
        vetted = self._whole(own_file, needed)
        asked = vetted.trust
        loads = self._loads(tool, asked)
        loaded: Sequence[File] = ()
        if isinstance(loads, Vetted):
            vetted = loads if vetted.trust is Trust.SIGNED else vetted
        elif loads is not None:
            loaded = loads.files
            found = (
                (file.path, self._check(file, _item(file.path), keys_of(file.path), verified))
                for file in loaded
            )
            vetted = self._whole(vetted, found)
            if vetted.trust is Trust.SIGNED:
                vetted = replace(vetted, loads=loads.digest())
        runs = self._around.runs(tool, [by_path[path] for path in own])
        keys = tuple(counted.values())
        signed: tuple[SignedFile, ...] = ()
        if vetted.trust is Trust.SIGNED:
            first, *rest = verified.values()
            signed = (replace(first, version=tool.version or ""), *rest)
        return Vetting(tool, keys, paths, held, asked, loaded, runs, self.waived(vetted), signed)

    def _element(
        self,
        element: Signature,
        file: File | None,
        keys: signing.Keys,
        verified: dict[str, SignedFile],
    ) -> Vetted:
        """One file that the record was compiled from."""
        if file is None or file.content is None:
            why = "cannot be read" if file is None else "is too long to be verified"
            return Vetted(trust=Trust.TAMPERED, message=f"{element.path} {why}", hint="load the tools again")
        found = self._check(file, element.item, keys, verified)
        # Attack: a declaration that nobody signed is loaded, then replaced by the signed one before the call.
        if found.trust is Trust.SIGNED and file.digest != element.digest:
            return Vetted(
                trust=Trust.TAMPERED,
                message=f"{element.path} changed since it was loaded",
                hint="load the tools again, so that what is declared and what runs are one",
            )
        return found

    def _check(self, file: File, item: str, keys: signing.Keys, verified: dict[str, SignedFile]) -> Vetted:
        """What a file's signature is worth; one that holds is put into ``verified``."""
        known = self._checked.get(file.path)
        if known is None or known[0] is not file or known[1] is not keys:
            found = _check(file, item, keys)
            signed = None
            if found.trust is Trust.SIGNED and file.content is not None:
                signed = signed_file(file.content, file.path)
            if len(self._checked) >= _CHECKED_MAX:
                self._checked.clear()
            known = self._checked[file.path] = (file, keys, found, signed)
        if known[3] is not None:
            verified[file.path] = known[3]
        return known[2]

    def _whole(self, own: Vetted, needed: Iterable[tuple[str, Vetted]]) -> Vetted:
        """Return what is known of a tool and of the files it needs, by their paths: what is wrong with the
        tool itself, else the first file that blocks it, else the first unsigned file that may run."""
        sound = (Trust.SIGNED, Trust.UNSIGNED) if self._takes_unsigned else (Trust.SIGNED,)
        if own.trust not in sound:
            return own
        unsigned = own if own.trust is Trust.UNSIGNED else None
        for path, vetted in needed:
            if vetted.trust not in sound:
                return replace(vetted, trust=Trust.BLOCKED, blocked_by=path)
            if vetted.trust is Trust.UNSIGNED:
                unsigned = unsigned or vetted
        return unsigned or own

    def waived(self, vetted: Vetted) -> Vetted:
        """The same, noted as run nevertheless in development mode."""
        if not self.is_development or vetted.trust is Trust.SIGNED:
            return vetted
        what = vetted.message.partition("\n")[0]
        return replace(vetted, waived=f"development mode: not verified, and run all the same: {what}")


def _check(file: File, item: str, keys: signing.Keys) -> Vetted:
    content = file.content
    if content is None:
        return Vetted(trust=Trust.TAMPERED, message=f"{file.path} is too long to be verified")
    suffix = "." + file.path.rpartition(".")[2]
    return check(content, path=file.path, suffix=suffix, item=item, keys=keys)


def signed_file(content: bytes, path: str) -> SignedFile | None:
    """What the signature line of a file says, which the caller has verified."""
    line = signing.read_line(content.decode("utf-8", "replace"), "." + path.rpartition(".")[2])
    if line is None:
        return None
    item = _ID.search(content) if path.endswith(_YAML) else None
    own_id = item[1].decode("utf-8", "replace") if item is not None else ""
    return SignedFile(path=path, key=line.key, digest=line.digest, time=line.time, item=own_id)


def check(content: bytes, *, path: str, suffix: str, item: str, keys: signing.Keys) -> Vetted:
    """What a signature says, and what it cannot say: the same for calls and for whoever asks beforehand."""
    found = signing.check(content, path=path, suffix=suffix, item=item, keys=keys)
    if found.trust is Trust.SIGNED and suffix == ".sh" and b"\r" in content:
        # Attack: a carriage return in the place of a line feed. The format's hash takes both for one; a shell
        # does not, and what was a command of its own becomes the rest of a comment.
        return Vetted(
            trust=Trust.TAMPERED,
            message=f"Content modified since signing: {path}\n  Found: carriage returns, which no "
            f"signature covers and shells take for text\n  Fix: write it with plain line feeds",
            hint="look at what changed before you mend it",
        )
    return found


def _item(path: str) -> str:
    """The address of a file that is no item of its own, as the format's commands spell it."""
    below = path.rpartition(_TOOLS)[2] if _TOOLS in path else path.rpartition("/")[2]
    return f"tool:{below.rpartition('.')[0]}"
