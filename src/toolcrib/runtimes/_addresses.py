"""Which addresses are public, which are private, and which nobody should ever be led to.

The tables are our own, so that they do not change with the interpreter. Nothing here resolves, connects or
decides who may reach what: ``_http_client.Reach`` does.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Final


class Zone(StrEnum):
    """What kind of address it is, from harmless to harmful."""

    PUBLIC = "public"
    PRIVATE = "private"
    NEVER = "never"


_ZONES: Final = (Zone.PUBLIC, Zone.PRIVATE, Zone.NEVER)
_PRIVATE_4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15"),
    )
)
_NEVER_4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
            "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
            "100.100.100.200/32", "168.63.129.16/32",  # metadata services outside of link-local
        ),
    )
)  # fmt: skip
_PRIVATE_6: Final = tuple(map(ipaddress.IPv6Network, ("::1/128", "fc00::/7")))
_METADATA_6: Final = tuple(map(ipaddress.IPv6Network, ("fd00:ec2::/32", "fd20:ce::/32")))
"""Metadata services inside the private range."""
_NEVER_6: Final = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_GLOBAL_6: Final = ipaddress.IPv6Network("2000::/3")
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")
_6TO4: Final = ipaddress.IPv6Network("2002::/16")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


def zone(address: str) -> Zone:
    """Which zone an address lies in, by every IPv4 address that it carries inside as well."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return Zone.NEVER
    return _zone_4(parsed) if isinstance(parsed, ipaddress.IPv4Address) else _zone_6(parsed)


def _zone_4(address: ipaddress.IPv4Address) -> Zone:
    if any(address in network for network in _NEVER_4):
        return Zone.NEVER
    return Zone.PRIVATE if any(address in network for network in _PRIVATE_4) else Zone.PUBLIC


def _zone_6(address: ipaddress.IPv6Address) -> Zone:
    # Attack: an IPv4 address in IPv6 clothes (mapped, compatible, NAT64, 6to4, Teredo, ISATAP), which some
    # gateway, or this machine itself, takes off again.
    number = int(address)
    low = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address.scope_id is not None:
        return Zone.NEVER
    if any(address in network for network in _PRIVATE_6):
        return Zone.NEVER if any(address in network for network in _METADATA_6) else Zone.PRIVATE
    if address in _MAPPED or address in _NAT64:
        return _zone_4(low)
    if address in _COMPATIBLE:
        return Zone.NEVER
    if address in _TEREDO:
        server = ipaddress.IPv4Address(number >> 64 & 0xFFFFFFFF)
        client = ipaddress.IPv4Address(number & 0xFFFFFFFF ^ 0xFFFFFFFF)
        return max(_zone_4(server), _zone_4(client), key=_ZONES.index)
    if address not in _GLOBAL_6 or any(address in network for network in _NEVER_6):
        return Zone.NEVER
    if address in _6TO4:
        return _zone_4(ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF))
    if number >> 32 & 0xFFFFFFFF in _ISATAP:
        return _zone_4(low)
    return Zone.PUBLIC
