"""Key files: the keyring of trusted public keys in its three tiers, and the pair of keys that signs.

The host decides who is trusted: keys in the user's folder and in those of installed bundles count; a key that
comes with a project counts only when one of those signed its file, or when the host trusted the project. All
checks of signatures themselves are in ``signing.py``; this file opens files, and only ever its own few.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.errors import SigningError, shortage
from toolcrib.formats import _toml
from toolcrib.model import Problem, Severity, Trust
from toolcrib.store import private
from toolcrib.store.trusted import KEYS, KEYS_MAX, digest_of
from toolcrib.trust import signing
from toolcrib.trust.signing import TrustedKey

PRIVATE_NAME: Final = "private_key.pem"
PUBLIC_NAME: Final = "public_key.pem"
_SIGNING: Final = (".ai", "config", "keys", "signing")
SIGNING_VARIABLE: Final = "RYE_SIGNING_KEY_DIR"

KEY_BYTES_MAX: Final = 16 << 10
_SIGNED_BY_DEPTH_MAX: Final = 8
_RINGS_MAX: Final = 1_000
_OWNER_CHARS_MAX: Final = 60
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}")
_SUFFIX: Final = ".toml"

_Print = tuple[int, int, int, int, int, int]


class Tier(StrEnum):
    """Where a key lies, and so who put it there."""

    USER = "user"
    SYSTEM = "system"
    PROJECT = "project"


_STORE_HINT: Final = (
    "a trust store must belong to you (or root) and be writable by nobody else: chmod go-w; "
    "with sudo, keep it in root's home: sudo -H"
)


class TrustFolder(Struct, frozen=True, kw_only=True):
    """One folder of trusted keys: ``.ai/config/keys/trusted`` of a space."""

    tier: Tier
    space: str
    """The folder that holds ``.ai``."""

    @property
    def path(self) -> str:
        return os.path.join(self.space, *KEYS)


class KeyFile(Struct, frozen=True, kw_only=True):
    """A key file as it was read; ``ignored`` says why it does not count."""

    path: str
    tier: Tier
    id: str
    owner: str = ""
    public: bytes = b""
    pem: str = ""
    signed_by: str = ""
    """The key that signed the file; its own id where it signed itself."""
    ignored: str | None = None

    @property
    def counts(self) -> bool:
        return self.ignored is None


class KeyText(Struct, frozen=True, kw_only=True):
    """What the text of a key file says."""

    id: str
    pem: str
    public: bytes
    owner: str = ""
    attestation: str = ""


# -- the keyring --------------------------------------------------------------------------------------------


class Keyring:
    """The trusted keys of one place: the user's, the installed bundles', and perhaps a project's.

    Files are looked at anew at every question and read anew when they changed: taking a key away revokes it
    at once. A folder or file that somebody else may write gives no key at all. Any thread may ask.
    """

    def __init__(
        self,
        user_space: str,
        systems: Sequence[str] = (),
        project: str | None = None,
        *,
        trusted: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """``trusted``: the project's own key files that the host trusts, with the digests of their bytes."""
        folders = [TrustFolder(tier=Tier.USER, space=user_space)]
        folders += [TrustFolder(tier=Tier.SYSTEM, space=space) for space in systems]
        if project is not None and not _is_same(project, user_space):
            folders.append(TrustFolder(tier=Tier.PROJECT, space=project))
        self.folders: Final = tuple(folders)
        self._trusted = trusted
        self._now: Standing | None = None

    def now(self) -> Standing:
        """The keys as they stand at this moment: the same object while nothing it looked at has changed."""
        trusted = self._trusted()
        if self._now is None or not self._now.still(trusted):
            self._now = Standing(self.folders, trusted)
        return self._now

    def find(self, key_id: str) -> Sequence[TrustedKey]:
        return self.now().find(key_id)

    def ids(self) -> Sequence[str]:
        return self.now().ids()


class Standing:
    """The keys of some folders, each file read at most once. What was looked at is remembered, absent files
    too, so that ``still`` can tell whether it would be found the same."""

    def __init__(self, folders: Sequence[TrustFolder], trusted: Mapping[str, str] | None = None) -> None:
        self._folders = folders
        self._trusted = trusted or {}
        self._seen: dict[str, _Print | None] = {}
        self._contents: dict[str, bytes | str | None] = {}
        self._found: dict[str, tuple[TrustedKey, ...]] = {}
        self._amiss = {folder.path: self._look_through(folder) for folder in folders}

    def still(self, trusted: Mapping[str, str]) -> bool:
        """Whether everything that was looked at is as it was."""
        if trusted != self._trusted:
            return False
        return all(_print_at(path) == seen for path, seen in self._seen.copy().items())

    def find(self, key_id: str) -> Sequence[TrustedKey]:
        """Every trusted key of that id, each once."""
        known = self._found.get(key_id)
        if known is None:
            found: dict[bytes, TrustedKey] = {}
            for file in self._files(key_id, ()):
                if file.counts and file.public not in found:
                    found[file.public] = TrustedKey(id=file.id, public=file.public, owner=file.owner)
            known = self._found[key_id] = tuple(found.values())
        return known

    def ids(self) -> Sequence[str]:
        """The ids of all trusted keys, sorted."""
        return sorted({file.id for file in self.files() if file.counts})

    def files(self) -> list[KeyFile]:
        """Every key file of every tier, those that do not count too."""
        found = (self._file(folder, name, ()) for folder in self._folders for name in self._names(folder))
        return [file for file in found if file is not None]

    def problems(self) -> list[Problem]:
        """What is wrong with folders and files of keys."""
        found = [
            Problem(
                code="trust.open-folder",
                severity=Severity.WARNING,
                message=f"no key is read from this folder: {why}",
                path=path,
                hint=_STORE_HINT,
            )
            for path, why in self._amiss.items()
            if why is not None
        ]
        found += [
            Problem(
                code="trust.ignored-key",
                severity=Severity.WARNING,
                message=f"this key is not trusted: {file.ignored}",
                path=file.path,
                hint="`toolcrib trust FILE` trusts a key that you know; remove a file that is not needed",
            )
            for file in self.files()
            if not file.counts
        ]
        return found

    def _look_through(self, folder: TrustFolder) -> str | None:
        """Why no key of a folder counts: somebody else could put keys there. None where all is well.

        Attack: a trust store in which others may write is theirs, not ours. The folders above it, up to the
        one that holds ``.ai``, count as much: who may rename them may put others in their place.
        """
        path = folder.space
        try:
            statuses = [(path, os.stat(path))]
            for part in KEYS:
                path = os.path.join(path, part)
                statuses.append((path, os.stat(path)))
        except (FileNotFoundError, NotADirectoryError):  # there is no trust store
            self._seen[folder.path] = None
            return None
        except OSError as error:
            return _reason(error)
        for path, status in statuses:
            if (why := _foreign(status)) is not None:
                self._seen[path] = _print(status)
                return why if path == folder.path else f"{path}: {why}"
        # Those above need no watching: whoever puts another folder in their place changes this one too.
        self._seen[path] = _print(status)
        return None

    def _names(self, folder: TrustFolder) -> list[str]:
        if self._amiss[folder.path] is not None:
            return []
        try:
            with os.scandir(folder.path) as entries:
                names = [entry.name for entry in islice(entries, KEYS_MAX)]
        except OSError:
            return []
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def _files(self, key_id: str, asking: tuple[str, ...]) -> list[KeyFile]:
        """The files of that name, tier by tier."""
        if not is_key_id(key_id):
            return []
        sound = (folder for folder in self._folders if self._amiss[folder.path] is None)
        found = (self._file(folder, key_id, asking) for folder in sound)
        return [file for file in found if file is not None]

    def _file(self, folder: TrustFolder, name: str, asking: tuple[str, ...]) -> KeyFile | None:
        """One file; None where there is none. ``asking`` are the keys whose files are being judged."""
        path = os.path.join(folder.path, f"{name}{_SUFFIX}")
        if path not in self._contents:
            seen = _print_at(path)
            read, self._contents[path] = _read_file(path)
            self._seen[path] = read or seen
        content = self._contents[path]
        if content is None:
            return None
        if isinstance(content, str):
            return KeyFile(path=path, tier=folder.tier, id=name, ignored=content)
        text = read_key(content)
        if isinstance(text, str):
            return KeyFile(path=path, tier=folder.tier, id=name, ignored=text)
        line = signing.read_line(content.decode("utf-8"), _SUFFIX)
        if text.id != name:
            # Attack: a key file renamed to the id of a key that somebody relies on.
            ignored: str | None = f"the file is named {name!r} and holds the key {text.id}"
        else:
            # Attack: a key that comes between the look at what is trusted and this one. The bytes that count
            # are those that were trusted.
            is_ours = folder.tier is not Tier.PROJECT or self._trusted.get(path) == digest_of(content)
            ignored = self._judge(text, content, line, (*asking, name), is_ours=is_ours)
        return KeyFile(
            path=path,
            tier=folder.tier,
            id=name,
            owner=text.owner,
            public=text.public,
            pem=text.pem,
            signed_by=line.key if line is not None else "",
            ignored=ignored,
        )

    def _judge(
        self,
        text: KeyText,
        content: bytes,
        line: signing.SignatureLine | None,
        asking: tuple[str, ...],
        *,
        is_ours: bool,
    ) -> str | None:
        """Why a key file does not count; None where it does."""
        if line is None:
            return None if is_ours else "a project cannot vouch for its own keys"
        if line.key == text.id:
            if not _holds(content, (TrustedKey(id=text.id, public=text.public),)):
                return "its own signature does not hold"
            return None if is_ours else "a project cannot vouch for its own keys"
        if line.key in asking or len(asking) > _SIGNED_BY_DEPTH_MAX:
            return f"it and {line.key} vouch for each other"
        # Attack: a project that ships a key and the key that signed it. Only the host's own keys vouch.
        signers = [
            TrustedKey(id=file.id, public=file.public)
            for file in self._files(line.key, asking)
            if file.counts and (is_ours or file.tier is not Tier.PROJECT)
        ]
        if not signers:
            return f"it is signed by {line.key}, which is not trusted"
        return None if _holds(content, signers) else f"the signature of {line.key} does not hold"


def _holds(content: bytes, signers: Sequence[TrustedKey]) -> bool:
    vetted = signing.check(content, path="", suffix=_SUFFIX, item="config:key", keys=_Only(signers))
    return vetted.trust is Trust.SIGNED


class _Only:
    """Some keys, and no others."""

    def __init__(self, keys: Sequence[TrustedKey]) -> None:
        self._keys = keys

    def find(self, key_id: str) -> Sequence[TrustedKey]:
        return [key for key in self._keys if key.id == key_id]

    def ids(self) -> Sequence[str]:
        return [key.id for key in self._keys]


class Keyrings:
    """The keyring that counts for a file, by where it lies: a project's own keys, for that project alone."""

    def __init__(
        self,
        user_space: str,
        systems: Sequence[str] = (),
        *,
        trusted: Callable[[str], Mapping[str, str]] = lambda _project: {},
    ) -> None:
        self._user_space = user_space
        self._systems = tuple(systems)
        self._trusted = trusted
        self._rings: dict[str, Keyring] = {}

    def now(self, path: str) -> Standing:
        """The keys that count for a file at this moment."""
        project, is_item, _ = path.partition("/.ai/")
        project = project if is_item and project not in (self._user_space, *self._systems) else ""
        ring = self._rings.get(project)
        if ring is None:
            if len(self._rings) >= _RINGS_MAX:
                self._rings.clear()
            ring = self._rings[project] = Keyring(
                self._user_space,
                self._systems,
                project or None,
                trusted=partial(self._trusted, project) if project else dict,
            )
        return ring.now()


def flaw(content: bytes, key: KeyText, trusted: signing.Keys) -> str | None:
    """What is wrong with the signature of a key file that somebody hands over; None where nothing is known.

    Attack: a file on its way to us, with another owner's name written into it.
    """
    line = signing.read_line(content.decode("utf-8", "replace"), _SUFFIX)
    if line is None:
        return None
    signers = (
        (TrustedKey(id=key.id, public=key.public),) if line.key == key.id else tuple(trusted.find(line.key))
    )
    return f"the signature of {line.key} does not hold" if signers and not _holds(content, signers) else None


# -- the text of a key file ---------------------------------------------------------------------------------


def read_key(content: bytes) -> KeyText | str:
    """A public key from a key file (TOML) or a bare PEM; a text says what is wrong with it."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not UTF-8 text"
    if text.lstrip().startswith("-----BEGIN"):
        return _key_text({"public_key": {"pem": text}})
    try:
        table = _toml.read(text)
    except ValueError as error:
        return f"not valid TOML: {error}"
    return _key_text(table)


def _key_text(table: Mapping[str, Any]) -> KeyText | str:
    inner = table.get("public_key")
    pem = inner.get("pem") if isinstance(inner, Mapping) else None
    if not isinstance(pem, str):
        return "it has no public_key.pem"
    public = signing.public_of(pem)
    if public is None:
        return "public_key.pem is no Ed25519 public key in PEM form"
    # Attack: a key that everybody can sign for, handed over as somebody's.
    if not signing.is_sound(public):
        return "public_key.pem holds a number that is nobody's key"
    key_id = signing.key_id(pem)
    stated = table.get("fingerprint", key_id)
    if stated != key_id:
        return f"it says fingerprint {str(stated)[:60]!r} and holds the key {key_id}"
    return KeyText(
        id=key_id,
        pem=signing.plain_pem(pem),
        public=public,
        owner=_line(table.get("owner")),
        attestation=_line(table.get("attestation")),
    )


def _line(value: object) -> str:
    """A text of a key file as it may stand in a message: short, and nothing that a terminal acts on."""
    if not isinstance(value, str):
        return ""
    return "".join(char if char.isprintable() else "?" for char in value[:_OWNER_CHARS_MAX])


def named(key: KeyText, owner: str) -> KeyText:
    """The same key with another owner's name."""
    return replace(key, owner=_line(owner))


def key_toml(key: KeyText) -> str:
    """The text of a key file."""
    return (
        'version = "1.0.0"\n'
        'category = "keys/trusted"\n'
        f'fingerprint = "{key.id}"\n'
        f"owner = {json.dumps(key.owner)}\n"
        f"attestation = {json.dumps(key.attestation)}\n"
        "\n"
        "[public_key]\n"
        f'pem = """\n{key.pem}"""\n'
    )


# -- the user's trust store ---------------------------------------------------------------------------------


def trust(user_space: str, key: KeyText) -> str:
    """Put a key into the user's trust store. Returns its path; raises SigningError."""
    folder = TrustFolder(tier=Tier.USER, space=user_space)
    # Before anything is made: under sudo with the user's HOME, a folder of root's would be left there, which
    # closes the store to its own user.
    if (why := _open_to_others(user_space)) is not None:
        raise SigningError(
            f"{folder.path}: no key is read from this folder: {user_space}: {why}", _STORE_HINT
        )
    _make_folder(folder.path)
    for problem in Standing((folder,)).problems():
        if problem.code == "trust.open-folder":
            raise SigningError(f"{problem.path}: {problem.message}", problem.hint)
    path = os.path.join(folder.path, f"{key.id}{_SUFFIX}")
    _write(path, key_toml(key).encode("utf-8"), 0o644, replacing=True)
    return path


def distrust(user_space: str, key_id: str) -> str | None:
    """Take a key out of the user's trust store. Returns the path it had; None where it was not there."""
    if not is_key_id(key_id):
        return None
    path = os.path.join(TrustFolder(tier=Tier.USER, space=user_space).path, f"{key_id}{_SUFFIX}")
    try:
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SigningError(f"{path}: {_reason(error)}", "remove the file by hand") from None
    return path


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text) is not None


# -- the pair of keys that signs ----------------------------------------------------------------------------


class SigningKey:
    """The user's key pair, read once."""

    def __init__(self, private: Any, public_pem: str) -> None:
        self._private = private
        self.pem: Final = public_pem
        self.id: Final = signing.key_id(public_pem)

    def sign(self, message: bytes) -> bytes:
        signature: bytes = self._private.sign(message)
        return signature


def signing_folder(user_space: str, variables: Mapping[str, str]) -> str:
    """Where the key pair lies: the variable's folder, else the user's own."""
    return variables.get(SIGNING_VARIABLE) or os.path.join(user_space, *_SIGNING)


def load_signing_key(folder: str) -> SigningKey:
    """The key pair of a folder. Raises SigningError; never makes one."""
    secret = _read_private(os.path.join(folder, PRIVATE_NAME))
    # By name: the library is slow to import, and reading public keys needs none.
    found = import_module("toolcrib.trust.ed25519").read_private(secret)
    if found is None:
        raise SigningError(
            f"{os.path.join(folder, PRIVATE_NAME)}: it is no Ed25519 key",
            "it must be in PEM form (PKCS8, BEGIN PRIVATE KEY), without a password",
        )
    private, public = found
    pem = signing.pem_of(public)
    public_path = os.path.join(folder, PUBLIC_NAME)
    _, content = _read_file(public_path)
    if isinstance(content, bytes):
        beside = content.decode("utf-8", "replace")
        if signing.public_of(beside) != public:
            raise SigningError(
                f"{public_path}: it is not the public key of {PRIVATE_NAME}",
                "put the right one there, or remove it: the private key is enough",
            )
        pem = signing.plain_pem(beside)  # ids are made from the text, so the text stays
    return SigningKey(private, pem)


def public_key(folder: str) -> KeyText | None:
    """The public key beside the private one, else the private one's own; None where none can be read."""
    path = os.path.join(folder, PUBLIC_NAME)
    _, content = _read_file(path)
    if not os.path.lexists(path):  # removed, or whoever made the pair was stopped in between
        with suppress(SigningError):
            content = load_signing_key(folder).pem.encode("ascii")
    found = read_key(content) if isinstance(content, bytes) else ""
    return found if isinstance(found, KeyText) else None


def generate(folder: str) -> KeyText:
    """Make a key pair. Raises SigningError, also where there is one already: a key is never overwritten."""
    for name in (PRIVATE_NAME, PUBLIC_NAME):
        if os.path.lexists(os.path.join(folder, name)):
            raise SigningError(
                f"{os.path.join(folder, name)}: there is a key already",
                "use it (`toolcrib keys show --json` tells its id, `toolcrib trust ID` trusts it), or "
                "move both files elsewhere first: what it signed needs it",
            )
    _make_folder(folder)
    if (why := _open_to_others(folder)) is not None:
        raise SigningError(f"{folder}: {why}", "a folder for keys must belong to you alone: chmod 700")
    secret, pem = import_module("toolcrib.trust.ed25519").make_private()
    _write(os.path.join(folder, PRIVATE_NAME), secret, 0o600)
    _write(os.path.join(folder, PUBLIC_NAME), pem.encode("ascii"), 0o644)
    return KeyText(id=signing.key_id(pem), pem=pem, public=signing.public_of(pem) or b"")


def _read_private(path: str) -> bytes:
    folder = os.path.dirname(path)
    if not os.path.lexists(path):
        raise SigningError(
            "No signing keypair found. Generate one first: toolcrib keys generate",
            f"looked in {folder}; {SIGNING_VARIABLE} names another folder",
        )
    # Attack: a folder that others may write, in which they put a key of their own.
    if (why := _open_to_others(folder)) is not None:
        raise SigningError(f"{folder}: {why}", "a folder for keys must belong to you alone: chmod 700")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SigningError(f"{path}: {_reason(error)}", "it must be a file of your own, no link") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > KEY_BYTES_MAX:
            raise SigningError(f"{path}: it is no key file", "it must be a short regular file")
        if status.st_uid != os.geteuid():
            raise SigningError(f"{path}: it belongs to somebody else", "sign with a key of your own")
        # Attack: a private key that others could read: whatever it signs may be theirs.
        if status.st_mode & 0o077:
            raise SigningError(
                f"{path}: others may read this private key (mode {stat.S_IMODE(status.st_mode):04o})",
                f"make a new one if they may have: else chmod 600 {path}",
            )
        return _read_all(descriptor)
    finally:
        os.close(descriptor)


# -- files --------------------------------------------------------------------------------------------------


def _open_to_others(path: str) -> str | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return _reason(error)
    return _foreign(status)


def _foreign(status: os.stat_result) -> str | None:
    if status.st_uid not in (0, os.geteuid()):
        return "it belongs to somebody else"
    if status.st_mode & 0o022:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _print(status: os.stat_result) -> _Print:
    if stat.S_ISDIR(status.st_mode):  # what else lies in it is no matter; who may write to it is
        return 0, 0, status.st_ino, 0, status.st_uid, status.st_mode
    return (
        status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns, status.st_uid, status.st_mode,
    )  # fmt: skip


def _print_at(path: str) -> _Print | None:
    try:
        return _print(os.stat(path))
    except OSError:
        return None


def _read_file(path: str) -> tuple[_Print | None, bytes | str | None]:
    """A small regular file that nobody else may write: its print and bytes, or why not; None: no such file.

    Attack: a link out of the folder, to where others may write.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, _reason(error)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None, "it is no regular file"
        if status.st_size > KEY_BYTES_MAX:
            return None, f"it has more than the {KEY_BYTES_MAX:,} bytes a key file may have"
        if (why := _foreign(status)) is not None:
            return _print(status), why
        return _print(status), _read_all(descriptor)
    except OSError as error:
        return None, _reason(error)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    content = b""
    while len(content) <= KEY_BYTES_MAX and (more := os.read(descriptor, KEY_BYTES_MAX + 1 - len(content))):
        content += more
    return content


def _make_folder(path: str) -> None:
    """The folder with everything above it, for us alone where it is new, whatever the umask is."""
    try:
        private.make_folders(path)
    except OSError as error:
        hint = "make the folder, or name another home that you may write to: HOME or USER_SPACE"
        raise SigningError(f"{error.filename or path}: {_reason(error)}", hint) from None


def _write(path: str, content: bytes, mode: int, *, replacing: bool = False) -> None:
    try:
        is_written = private.put(path, content, mode=mode, replacing=replacing)
    except OSError as error:
        short = shortage(error)
        hint = short[1] if short else "make room, or choose another place"
        raise SigningError(f"{path}: {_reason(error)}", hint) from None
    if not is_written:
        raise SigningError(f"{path}: there is a key already", "a key is never overwritten")


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a link"
    return (error.strerror or "it cannot be used").lower()
