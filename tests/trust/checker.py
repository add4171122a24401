"""A second verifier of rye's signatures, written from the requirements' text alone.

It shares no code with the program and no library for the signatures: Ed25519 is worked out here by the steps
of RFC 8032, slowly. What it says of a file must be what the program says.
"""

from __future__ import annotations

import base64
import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)

Point = tuple[int, int]


def add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, P - 2, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, P - 2, P) % P,
    )


def multiply(number: int, point: Point) -> Point:
    """By doubling and adding, with the division put off to the end."""
    found, step = (0, 1, 1, 0), (*point, 1, point[0] * point[1] % P)
    while number:
        if number & 1:
            found = _add(found, step)
        step = _add(step, step)
        number >>= 1
    inverse = pow(found[2], P - 2, P)
    return found[0] * inverse % P, found[1] * inverse % P


def _add(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c, d = 2 * one[3] * other[3] * D % P, 2 * one[2] * other[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def decode(encoded: bytes) -> Point | None:
    """The point of 32 bytes; None where they are none, or not the one spelling of it."""
    number = int.from_bytes(encoded, "little")
    y, odd = number & (2**255 - 1), number >> 255
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * ROOT % P
    if x * x % P != square or (x == 0 and odd):
        return None
    return (P - x if x & 1 != odd else x), y


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def base() -> Point:
    found = decode((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    assert found is not None
    return found


BASE = base()


def holds(public: bytes, message: bytes, signature: bytes) -> bool:
    key, first, number = decode(public), decode(signature[:32]), int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or key is None or first is None or number >= L:
        return False
    if multiply(8, key) == (0, 1):
        return False  # everybody can sign for it
    hashed = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    return multiply(number, BASE) == add(first, multiply(hashed, key))


def key_id(pem: str) -> str:
    return hashlib.sha256((pem.strip() + "\n").encode("ascii")).hexdigest()[:16]


def public_of(pem: str) -> bytes:
    lines = pem.strip().splitlines()
    assert (lines[0], lines[-1]) == ("-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----")
    der = base64.b64decode("".join(lines[1:-1]))
    assert der[:12] == bytes.fromhex("302a300506032b6570032100")
    return der[12:]


HEX = set("0123456789abcdef")
URL = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
PREFIXES = {
    **dict.fromkeys((".js", ".ts", ".mjs", ".cjs"), "//"),
    **dict.fromkeys((".py", ".yaml", ".yml", ".json", ".sh", ".toml"), "#"),
}


def verdict(content: bytes, suffix: str, pems: dict[str, str]) -> str:
    """``unsigned``, ``modified``, ``untrusted``, ``bad`` or ``valid``: in that order."""
    text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    if PREFIXES.get(suffix) == "#" and text.startswith("#!/"):
        text = text.partition("\n")[2]
    line, ended, rest = text.partition("\n")
    fields = signature_fields(line, suffix) if ended else None
    if fields is None:
        return "unsigned"
    digest, signature, key = fields
    if suffix == ".md" and rest.startswith("---"):
        rest = rest.split("---", 2)[2].strip()
    if hashlib.sha256(rest.encode("utf-8")).hexdigest() != digest:
        return "modified"
    if key not in pems:
        return "untrusted"
    assert key_id(pems[key]) == key
    raw = base64.urlsafe_b64decode(signature.rstrip("=") + "==")
    return "valid" if holds(public_of(pems[key]), digest.encode("ascii"), raw) else "bad"


def signature_fields(line: str, suffix: str) -> tuple[str, str, str] | None:
    if suffix == ".md":
        if not (line.startswith("<!-- ") and line.endswith(" -->")):
            return None
        line = line[5:-4]
    else:
        prefix = f"{PREFIXES[suffix]} "
        if not line.startswith(prefix):
            return None
        line = line[len(prefix) :]
    line, bar, provider = line.partition("|")
    named = provider.split("@")
    if bar and (len(named) != 2 or not all(named) or not set("".join(named)) <= URL):
        return None
    parts = line.split(":")
    if len(parts) != 8 or parts[:2] != ["rye", "signed"]:
        return None
    time, digest, signature, key = ":".join(parts[2:5]), *parts[5:]
    if not all(digit in "0123456789" for digit in time.translate(str.maketrans("", "", "-T:Z"))):
        return None
    if len(time) != 20 or time[4] + time[7] + time[10] + time[13] + time[16] + time[19] != "--T::Z":
        return None
    if len(digest) != 64 or not set(digest) <= HEX or len(key) != 16 or not set(key) <= HEX:
        return None
    if not signature.rstrip("=") or not set(signature.rstrip("=")) <= URL:
        return None
    return digest, signature, key
