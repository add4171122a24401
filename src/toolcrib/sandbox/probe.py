"""Which isolation works on this machine, found by really using each layer, never by version numbers.

``try_layers`` uses Landlock and the filter in throw-away threads and asks the spawner, if there is one, to
use everything in a child of its own. ``choose`` builds the strongest level from what worked; ``report`` says
the same to people: what works, what is missing, what that means and how to mend it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Final

from msgspec import Struct

from toolcrib.errors import shortage_told
from toolcrib.model import LEVELS, Level
from toolcrib.sandbox import Sandbox, Start, _kernel
from toolcrib.sandbox._scratch import Scratch
from toolcrib.sandbox.ground import Surroundings
from toolcrib.sandbox.rules import NUMBERS, Fs, KernelRules, seccomp_filter
from toolcrib.sandbox.supervised import Probed, Supervised, installed

_NOT_TRIED: Final = Probed(reason="not tried")
_NOT_BUILT: Final = "it was not built when this was installed"
_NO_LANDLOCK: Final = "the kernel has no Landlock, or it is not switched on"


class Layer(Struct, frozen=True, kw_only=True):
    """One layer: whether it works here, what it does, and what to do where it does not."""

    name: str
    works: bool
    means: str
    reason: str = ""
    fix: str = ""


class Tried(Struct, frozen=True, kw_only=True):
    """What worked when it was tried."""

    landlock: int = 0
    """The version that held; 0: none."""
    landlock_reason: str = ""
    seccomp: bool = False
    seccomp_reason: str = ""
    spawner: Probed = _NOT_TRIED
    no_scratch: str = ""
    """Why no scratch folder can be made, without which nothing is called; empty where one can."""

    @property
    def namespaces(self) -> bool:
        return self.spawner.works("mount-namespace")

    @property
    def level(self) -> Level:
        """The strongest level of which every layer works: a name must not promise what is missing."""
        if not (self.landlock and self.seccomp):
            return Level.PORTABLE
        return Level.SUPERVISED if self.spawner.works("subreaper") else Level.RESTRICTED


def choose(*, base: str | None = None, told: Callable[[str], None] = lambda why: None) -> Sandbox:
    """The strongest level that works. A call that requires more is refused, so nothing runs below.

    ``base``: where scratch folders lie, else the system's temporary folder. ``told`` hears why it is not the
    strongest there is. A machine without Landlock still gets the supervisor, which finds and ends everything,
    but not the name of that level.
    """
    scratch = Scratch(base)
    if sys.platform != "linux":
        told("it is for Linux")
        return _portable(scratch)
    why = _NOT_BUILT
    if installed() is not None:
        supervised = _Chosen(scratch)
        probed = supervised.probe()  # it has used every layer, so they need not be tried again here
        if probed.works("subreaper"):
            landlock = _kernel.landlock_version() if probed.works("landlock") else 0
            supervised.know(
                Tried(landlock=landlock, seccomp=probed.works("seccomp"), spawner=probed), scratch
            )
            if supervised.level is not Level.SUPERVISED:
                layer = "seccomp" if landlock else "landlock"
                told(f"{layer}: {probed.errors.get(layer, _NO_LANDLOCK)}")
            return supervised
        why = probed.reason or probed.errors["subreaper"]
        supervised.close()
        scratch = Scratch(base)
    landlock, landlock_reason = _try_landlock()
    seccomp, seccomp_reason = _try_seccomp()
    if landlock and seccomp:
        told(why)
        return restricted(landlock=landlock, scratch=scratch)
    told(f"seccomp: {seccomp_reason}" if landlock else f"landlock: {landlock_reason}")
    return _portable(scratch)


# The weaker levels are imported where they are needed: `subprocess` is slow to import, and most hosts never
# use it.


def restricted(*, landlock: int, scratch: Scratch) -> Sandbox:
    """The level below the supervised one, where Landlock and the filter work."""
    surroundings = Surroundings(landlock=landlock, seccomp=True, namespaces=False)
    made: Sandbox = import_module("toolcrib.sandbox.restricted").Restricted(surroundings, scratch)
    return made


def _portable(scratch: Scratch) -> Sandbox:
    made: Sandbox = import_module("toolcrib.sandbox.portable").Portable(scratch)
    return made


class _Chosen(Supervised):
    """The supervised level with the rules of this machine, which are known when it has probed."""

    def __init__(self, scratch: Scratch) -> None:
        super().__init__(self._rules_of, scratch)
        self._surroundings: Surroundings | None = None

    def know(self, tried: Tried, scratch: Scratch) -> None:
        self.level = Level.SUPERVISED if tried.level is Level.SUPERVISED else Level.PORTABLE
        self._namespaces_work = tried.namespaces
        self._surroundings = Surroundings(
            landlock=tried.landlock,
            seccomp=tried.seccomp,
            namespaces=tried.namespaces,
            empty=scratch.empty_folder,
        )

    def _rules_of(self, start: Start, folder: str) -> KernelRules:
        if self._surroundings is None:
            return KernelRules(unavailable="nothing is known about this machine yet")
        return self._surroundings.rules(start, folder)


def try_layers(*, base: str | None = None) -> Tried:
    """Use every layer once. ``base``: as for ``choose``."""
    if sys.platform != "linux":
        why = f"{sys.platform} has none"
        return Tried(landlock_reason=why, seccomp_reason=why, spawner=Probed(reason="it is for Linux"))
    landlock, landlock_reason = _try_landlock()
    seccomp, seccomp_reason = _try_seccomp()
    no_scratch = ""
    try:
        scratch = Scratch(base)
    except OSError as error:
        no_scratch = f"{error.filename or base}: {(error.strerror or str(error)).lower()}"
        spawner = Probed(reason="it needs a scratch folder")
    else:
        if installed() is None:
            scratch.close()
            spawner = Probed(reason=_NOT_BUILT)
        else:
            supervised = Supervised(lambda start, folder: KernelRules(), scratch)
            spawner = supervised.probe()
            supervised.close()
    return Tried(
        landlock=landlock,
        landlock_reason=landlock_reason,
        seccomp=seccomp,
        seccomp_reason=seccomp_reason,
        spawner=spawner,
        no_scratch=no_scratch,
    )


# -- trying -------------------------------------------------------------------------------------------------


def _try_landlock() -> tuple[int, str]:
    version = _kernel.landlock_version()
    if not version:
        return 0, _NO_LANDLOCK
    problem = _in_a_thread(_use_landlock)
    return (0, problem) if problem else (version, "")


def _use_landlock() -> str:
    ruleset = _kernel.landlock_ruleset(KernelRules(fs_handled=int(Fs.READ_DIR)))
    try:
        _kernel.no_new_privileges()
        _kernel.restrict_thread(ruleset, b"")
    finally:
        os.close(ruleset)
    try:
        os.listdir("/")
    except PermissionError:
        return ""
    return "it was switched on and held nothing"


def _try_seccomp() -> tuple[bool, str]:
    if _kernel.architecture() not in NUMBERS:
        return False, f"there is no filter for {_kernel.architecture()}"
    problem = _in_a_thread(_use_seccomp)
    return not problem, problem


def _use_seccomp() -> str:
    filter_ = seccomp_filter(_kernel.architecture(), network=False, unix_sockets=False, tracing=True)
    _kernel.no_new_privileges()
    _kernel.restrict_thread(None, filter_)
    try:
        socket.socket(socket.AF_INET).close()
    except OSError:
        return ""
    return "it was switched on and held nothing"


def _in_a_thread(use: Callable[[], str]) -> str:
    """What a throw-away thread says after it restricted itself; what it took on ends with it."""
    said: list[str] = []

    def run() -> None:
        try:
            said.append(use())
        except OSError as error:
            said.append(error.strerror or str(error))

    thread = threading.Thread(target=run, name="probe", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads for this user
        return str(error)
    thread.join()
    return said[0]


# -- telling ------------------------------------------------------------------------------------------------

_LANDLOCK_FIX: Final = (
    "use Linux 5.13 or later with Landlock among its security modules (boot parameter `lsm=landlock,…`); "
    "in a container, let its seccomp profile pass the landlock system calls"
)
_SECCOMP_FIX: Final = "in a container, let its seccomp profile pass prctl(PR_SET_SECCOMP)"
_NAMESPACE_SETTINGS: Final = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "an AppArmor profile that gives the spawner `userns`, or "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
_SPAWNER_FIX: Final = "install from a wheel, or install a C compiler (gcc or clang) and reinstall"
_PROC_FIX: Final = "mount /proc: mount -t proc proc /proc"
SCRATCH_FIX: Final = "make room there, or name another folder in TMPDIR"


def report(tried: Tried) -> tuple[Layer, ...]:
    """The layers for people."""
    spawner = tried.spawner
    return (
        Layer(
            name="landlock",
            works=bool(tried.landlock),
            means="what tools read, write and execute is held to what they were granted",
            reason=tried.landlock_reason or f"version {tried.landlock}",
            fix="" if tried.landlock else _fix(tried.landlock_reason, _LANDLOCK_FIX),
        ),
        Layer(
            name="seccomp",
            works=tried.seccomp,
            means="tools reach no network and no dangerous system call unless granted",
            reason=tried.seccomp_reason,
            fix="" if tried.seccomp else _fix(tried.seccomp_reason, _SECCOMP_FIX),
        ),
        Layer(
            name="spawner",
            works=spawner.works("subreaper"),
            means="every process of a call ends with it, also daemons",
            reason=spawner.reason or spawner.errors.get("subreaper", ""),
            fix="" if spawner.works("subreaper") else _spawner_fix(tried),
        ),
        Layer(
            name="mount-namespace",
            works=tried.namespaces,
            means="git hooks, declarations and our own state stay out of reach of tools that may write",
            reason=("it needs the spawner" if spawner.reason else spawner.errors.get("mount-namespace", "")),
            fix=""
            if tried.namespaces
            else _spawner_fix(tried)
            if spawner.reason
            else _fix(spawner.errors.get("mount-namespace", ""), namespace_fix()),
        ),
    )


def _spawner_fix(tried: Tried) -> str:
    if installed() is None:
        return _SPAWNER_FIX
    if tried.no_scratch:
        return SCRATCH_FIX
    if not os.path.exists("/proc/self"):
        return _PROC_FIX
    return _fix(tried.spawner.reason or tried.spawner.errors.get("subreaper", ""), "reinstall toolcrib")


def _fix(reason: str, otherwise: str) -> str:
    """What to do about a layer: where only something ran out, nothing is wrong with the layer."""
    short = shortage_told(reason)
    return short[1] if short else otherwise


def namespace_fix() -> str:
    """What keeps an ordinary user from having namespaces here, as the kernel's settings tell it."""
    if not os.path.exists("/proc/self"):
        return _PROC_FIX
    for path, closed, fix in _NAMESPACE_SETTINGS:
        with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            if file.read(64).strip() == closed:
                return fix
    return (
        "let user and mount namespaces through: a container's seccomp profile or security policy forbids "
        "them; a chroot cannot have them, a container can"
    )


def is_enough(tried: Tried, require: Level) -> bool:
    """Whether what works reaches the level that the configuration requires."""
    return LEVELS.index(tried.level) >= LEVELS.index(require)
