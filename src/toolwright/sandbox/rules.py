"""What a permit means to the kernel: Landlock rules, a seccomp filter, mounts, resource limits. Pure.

The levels apply these values; nothing here touches the machine. What exists on it (which paths are there,
which interpreter a script names, who we are) comes in as ``Facts``.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolwright.model import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """One mount in the tool's own mount namespace: ``target`` shows ``source`` instead of what lies there."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRules:
    """Everything a level applies between fork and exec. Equal rules may share a Landlock ruleset."""

    fs_handled: int = 0
    """Landlock access bits that are refused unless a rule allows them; 0: no Landlock."""
    fs_allowed: tuple[tuple[str, int], ...] = ()
    """Path and the access bits below it. A path that is gone is left out."""
    net_handled: int = 0
    scoped: int = 0
    """Landlock scopes: abstract unix sockets, signals."""
    seccomp: bytes = b""
    """A classic BPF program; empty: none."""
    binds: tuple[Bind, ...] = ()
    """Not empty: a mount namespace (and a user namespace, unless we are root)."""
    rlimits: tuple[tuple[int, int], ...] = ()
    """Resource number and value, soft and hard alike."""
    uid: int | None = None
    """Run under another user: only as root."""
    gid: int | None = None
    drop_capabilities: bool = True
    limits: Limits = Limits()
    """What the supervisor samples: processes, memory, scratch."""
    layers: tuple[str, ...] = ()
    """The names of what is in force, for results and records."""
