"""Rye's signature lines: the real files, a second verifier, the format's own words, and attacks on them."""

from __future__ import annotations

import base64
import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import shared
from tests.trust import checker
from toolcrib.model import Trust, Vetted
from toolcrib.trust import ed25519, signing
from toolcrib.trust.signing import TrustedKey

TIME = "2026-04-09T00:59:52Z"
LEO = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAgc0X8VKJuKzFh/aSw/XeYEdp3keIqncwu9ySd81Y69g=
-----END PUBLIC KEY-----
"""
GITHUB_CI = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAUbAHc8d2KetZE2I9eb+VaUpTLkNsDJtFaAsY0nTEm7I=
-----END PUBLIC KEY-----
"""
"""The two keys of the published tree: what a key says of itself is no secret."""

WORDS = {
    "valid": "signed",
    "unsigned": "Unsigned item",
    "modified": "Content modified since signing",
    "untrusted": "Untrusted key",
    "bad": "Ed25519 signature verification failed",
}
SUFFIXES = (".py", ".yaml", ".yml", ".json", ".sh", ".toml", ".js", ".ts", ".mjs", ".cjs", ".md")


class Pen:
    """A key pair that signs."""

    def __init__(self, seed: int) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.public = self.private.public_key().public_bytes_raw()
        self.pem = signing.pem_of(self.public)
        self.id = signing.key_id(self.pem)

    def key(self, owner: str = "") -> TrustedKey:
        return TrustedKey(id=self.id, public=self.public, owner=owner)

    def sign(self, text: str | bytes, suffix: str = ".py", item: str = "tool:ID") -> bytes:
        content = text if isinstance(text, bytes) else text.encode("utf-8")
        signed, _ = signing.sign(
            content, suffix, item, time=TIME, key_id=self.id, signature_of=self.private.sign
        )
        return signed


class Ring:
    """Trusted keys, as many under one id as there are."""

    def __init__(self, *keys: TrustedKey) -> None:
        self.keys = keys

    def find(self, key_id: str) -> Sequence[TrustedKey]:
        return [key for key in self.keys if key.id == key_id]

    def ids(self) -> Sequence[str]:
        return sorted({key.id for key in self.keys})


ADA, EVE = Pen(1), Pen(2)
TRUSTED = Ring(ADA.key("ada"))
BODY = 'print("hello")\n'


def check(content: bytes, suffix: str = ".py", keys: signing.Keys = TRUSTED, item: str = "tool:ID") -> Vetted:
    return signing.check(content, path="P", suffix=suffix, item=item, keys=keys)


def said(vetted: Vetted) -> str:
    """In one word, as the second verifier says it."""
    if vetted.trust is Trust.SIGNED:
        assert vetted.message == ""
        return "valid"
    return next(word for word, text in WORDS.items() if vetted.message.startswith(text))


def base64_text(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).decode("ascii").rstrip("=")


def line_of(content: bytes) -> str:
    return next(line for line in content.decode("utf-8").splitlines() if "rye:signed:" in line)


# -- the line -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.sign.line")
def test_the_line_is_written_and_read_with_all_its_fields() -> None:
    signed = ADA.sign(BODY)
    digest = hashlib.sha256(BODY.encode("utf-8")).hexdigest()
    first, _, rest = signed.decode("utf-8").partition("\n")
    signature = base64.urlsafe_b64encode(ADA.private.sign(digest.encode("ascii"))).decode("ascii").rstrip("=")
    assert first == f"# rye:signed:{TIME}:{digest}:{signature}:{ADA.id}"
    assert rest == BODY
    read = signing.read_line(signed.decode("utf-8"), ".py")
    assert read is not None
    assert (read.time, read.digest, read.signature, read.key) == (TIME, digest, signature, ADA.id)


@pytest.mark.requirement("rye.sign.line")
def test_the_requirements_own_line_is_read_and_its_key_found() -> None:
    line = f"# rye:signed:2026-04-09T00:59:52Z:{'4f0e' * 16}:cG3p:4b987fd4e40303ac"
    read = signing.read_line(f"{line}\nx\n", ".py")
    assert read is not None
    assert (read.time, read.key, read.provider) == ("2026-04-09T00:59:52Z", "4b987fd4e40303ac", "")
    named = signing.read_line(f"{line}|rye-registry@leo\nx\n", ".py")
    assert named is not None
    assert named.provider == "rye-registry@leo"
    assert signing.read_line(line, ".py") is None  # not ended by LF


@pytest.mark.requirement("rye.sign.line")
def test_a_line_with_a_provider_verifies() -> None:
    signed = ADA.sign(BODY).replace(f":{ADA.id}\n".encode(), f":{ADA.id}|rye-registry@ada\n".encode())
    assert check(signed).trust is Trust.SIGNED


@pytest.mark.requirement("rye.sign.prefix", "rye.sign.all-extensions")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_each_kind_of_file_has_its_prefix(suffix: str) -> None:
    line = ADA.sign(BODY, suffix).decode("utf-8").partition("\n")[0]
    if suffix == ".md":
        assert line.startswith("<!-- rye:signed:")
        assert line.endswith(" -->")
    else:
        family = "//" if suffix in (".js", ".ts", ".mjs", ".cjs") else "#"
        assert line.startswith(f"{family} rye:signed:")
    for other in SUFFIXES:
        same = signing.read_line(f"{line}\n", other) is not None
        assert same == (check(ADA.sign(BODY, suffix), other).trust is Trust.SIGNED)


@pytest.mark.requirement("rye.sign.prefix")
@pytest.mark.parametrize("suffix", [".rb", "", ".PY", ".txt"])
def test_a_kind_of_file_without_a_prefix_is_refused(suffix: str) -> None:
    with pytest.raises(ValueError, match="No signature format configured for extension"):
        ADA.sign(BODY, suffix)
    vetted = check(ADA.sign(BODY), suffix)
    assert vetted.trust is Trust.UNSIGNED
    assert vetted.message.startswith("No signature format configured for extension")


@pytest.mark.requirement("rye.sign.shebang", "rye.sign.all-extensions")
@pytest.mark.parametrize("suffix", [".py", ".sh", ".yaml", ".toml", ".json", ".yml"])
def test_the_line_stands_after_a_shebang_line(suffix: str) -> None:
    signed = ADA.sign(f"#!/usr/bin/env python3\n{BODY}", suffix)
    lines = signed.decode("utf-8").split("\n")
    assert lines[0] == "#!/usr/bin/env python3"
    assert lines[1].startswith("# rye:signed:")
    assert "\n".join(lines[2:]) == BODY
    assert check(signed, suffix).trust is Trust.SIGNED


@pytest.mark.requirement("rye.sign.shebang")
def test_the_line_stands_first_in_javascript_also_where_there_is_a_shebang_line() -> None:
    signed = ADA.sign("#!/usr/bin/env node\nrun()\n", ".js")
    assert signed.startswith(b"// rye:signed:")
    assert check(signed, ".js").trust is Trust.SIGNED
    line = line_of(signed)
    moved = f"#!/usr/bin/env node\n{line}\nrun()\n".encode()
    assert said(check(moved, ".js")) == "unsigned"


@pytest.mark.requirement("rye.js.signature-line")
def test_a_signature_below_a_comment_is_none_in_typescript() -> None:
    line = line_of(ADA.sign("export const a = 1;\n", ".ts"))
    text = f"// .ai/tools/utility/hello_node.ts\n{line}\nexport const a = 1;\n"
    vetted = check(text.encode(), ".ts")
    assert vetted.trust is Trust.UNSIGNED
    assert vetted.message.startswith("Unsigned item: P\n")


# -- what is hashed and signed ------------------------------------------------------------------------------


@pytest.mark.requirement("rye.sign.hashed-bytes")
@pytest.mark.parametrize("shebang", ["", "#!/bin/sh\n"])
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_line_ends_give_the_same_hash(shebang: str, end: str) -> None:
    signed = ADA.sign(f"{shebang}one\ntwo\n\nthree", ".sh")
    other = signed.replace(b"\n", end.encode())
    assert signing.digest(other, ".sh") == signing.digest(signed, ".sh")
    assert check(other, ".sh").trust is Trust.SIGNED
    assert checker.verdict(other, ".sh", {ADA.id: ADA.pem}) == "valid"


@pytest.mark.requirement("rye.sign.hashed-bytes")
def test_the_hash_leaves_out_the_shebang_and_one_signature_line() -> None:
    plain = hashlib.sha256(BODY.encode("utf-8")).hexdigest()
    assert signing.digest(BODY.encode(), ".py") == plain
    assert signing.digest(f"#!/bin/python\n{BODY}".encode(), ".py") == plain
    assert signing.digest(ADA.sign(f"#!/bin/python\n{BODY}"), ".py") == plain
    # Not at its right place, a shebang is a line like any other.
    assert signing.digest(ADA.sign(BODY).replace(b"\n", b"\n#!/x\n", 1), ".py") != plain


@pytest.mark.requirement("rye.sign.one-line-removed")
def test_a_second_signature_line_is_body() -> None:
    inner = EVE.sign(BODY)
    first = f"{line_of(ADA.sign(BODY))}\n".encode()
    assert said(check(first + inner)) == "modified"  # the second line is part of the hashed text
    digest = hashlib.sha256(inner).hexdigest()
    signature = base64_text(ADA.private.sign(digest.encode("ascii")))
    right = f"# rye:signed:{TIME}:{digest}:{signature}:{ADA.id}\n".encode() + inner
    assert check(right).trust is Trust.SIGNED
    assert ADA.sign(right) == right  # one line is replaced, not both


@pytest.mark.requirement("rye.sign.one-line-removed")
@pytest.mark.parametrize(
    "old",
    [
        "kiwi-mcp:validated:2025-01-01T00:00:00Z:abc",
        "rye:validated:2026-01-01T00:00:00Z:abc",
        "kiwi-mcp:signed:x",
        "rye:signed:TIMESTAMP:HASH:SIGNATURE:KEYID",
    ],
)
def test_an_older_or_placeholder_line_counts_as_no_signature_and_is_replaced(old: str) -> None:
    text = f"# {old}\n{BODY}".encode()
    assert said(check(text)) == "unsigned"
    assert ADA.sign(text) == ADA.sign(BODY)


@pytest.mark.requirement("rye.sign.unsigned-marker")
def test_an_unsigned_marker_is_body() -> None:
    signed = ADA.sign(f"# rye:unsigned\n{BODY}")
    assert signed.decode("utf-8").splitlines()[1] == "# rye:unsigned"
    assert check(signed).trust is Trust.SIGNED
    assert said(check(signed.replace(b"# rye:unsigned\n", b""))) == "modified"
    assert ADA.sign(signed) == signed, "signing again leaves it where it is"
    assert ADA.sign(BODY) != signed
    for other in (b"# rye:unsigned \n", b"#rye:unsigned\n", b"# rye:unsigned\r\n\n"):
        assert said(check(signed.replace(b"# rye:unsigned\n", other))) == "modified"


@pytest.mark.requirement("rye.sign.unsigned-marker")
def test_the_unsigned_marker_of_a_real_file_is_hashed() -> None:
    (real,) = (shared("corpus") / "rye").glob("2026-*/**/python/function.yaml")
    assert real.read_text(encoding="utf-8").splitlines()[1] == "# rye:unsigned"
    assert check(real.read_bytes(), ".yaml", real_keys()).trust is Trust.SIGNED


@pytest.mark.requirement("rye.sign.message")
def test_the_message_is_the_hash_as_64_characters() -> None:
    digest = hashlib.sha256(BODY.encode("utf-8")).hexdigest()
    raw = base64_text(ADA.private.sign(bytes.fromhex(digest)))
    wrong = f"# rye:signed:{TIME}:{digest}:{raw}:{ADA.id}\n{BODY}".encode()
    assert said(check(wrong)) == "bad"
    read = signing.read_line(ADA.sign(BODY).decode("utf-8"), ".py")
    assert read is not None
    ADA.private.public_key().verify(base64.urlsafe_b64decode(f"{read.signature}=="), digest.encode("ascii"))


@pytest.mark.requirement("rye.sign.base64")
def test_padding_is_accepted_and_not_written() -> None:
    signed = ADA.sign(BODY)
    line = signing.read_line(signed.decode("utf-8"), ".py")
    assert line is not None
    assert (len(line.signature), line.signature[-1] != "=") == (86, True)
    padded = signed.replace(line.signature.encode(), f"{line.signature}==".encode())
    assert check(padded).trust is Trust.SIGNED
    # "...OEQakODw==", as the real key file has it
    real = (shared("corpus") / "rye/keys/trusted/4b987fd4e40303ac.toml").read_bytes()
    assert b"OEQakODw==:4b987fd4e40303ac\n" in real
    assert check(real, ".toml", real_keys()).trust is Trust.SIGNED
    assert check(real.replace(b"OEQakODw==", b"OEQakODw"), ".toml", real_keys()).trust is Trust.SIGNED


@pytest.mark.requirement("rye.sign.key-id")
def test_a_key_id_is_the_beginning_of_the_hash_of_the_keys_text() -> None:
    assert signing.key_id(GITHUB_CI) == "6ea18199041a1ea8"
    assert signing.key_id(LEO) == "4b987fd4e40303ac"
    for other in (f"\n  {GITHUB_CI}\n\n", GITHUB_CI.rstrip("\n"), GITHUB_CI.replace("\n", "\r\n")):
        assert signing.key_id(other) == "6ea18199041a1ea8"
    public = signing.public_of(GITHUB_CI)
    assert public is not None
    assert signing.pem_of(public) == GITHUB_CI


# -- writing ------------------------------------------------------------------------------------------------

BODIES = st.text(st.characters(exclude_categories=["Cs"]), max_size=200).map(
    lambda text: text.encode("utf-8")
)
"""With every kind of line end and blank."""


@pytest.mark.requirement("rye.sign.round-trip")
@given(BODIES, st.sampled_from(SUFFIXES), st.booleans())
def test_what_we_sign_a_second_verifier_accepts_and_signing_changes_nothing_else(
    body: bytes, suffix: str, shebang: bool
) -> None:
    text = b"#!/bin/sh\n" + body if shebang else body
    once = ADA.sign(text, suffix)
    assert check(once, suffix).trust is Trust.SIGNED
    assert checker.verdict(once, suffix, {ADA.id: ADA.pem}) == "valid"
    line = next(line for line in once.split(b"\n") if b"rye:signed:" in line) + b"\n"
    if b"rye:signed:" not in text and b"kiwi-mcp:" not in text:
        assert once.replace(line, b"", 1) == text
    assert ADA.sign(once, suffix) == once
    assert EVE.sign(once, suffix) == EVE.sign(text, suffix)  # replaced, not added


@given(BODIES, st.integers(0, 300), st.integers(0, 255), st.sampled_from(SUFFIXES))
def test_both_verifiers_say_the_same_of_a_changed_file(
    body: bytes, place: int, byte: int, suffix: str
) -> None:
    content = bytearray(ADA.sign(body, suffix))
    content[place % len(content)] = byte
    try:
        bytes(content).decode("utf-8")
    except UnicodeDecodeError:
        assert check(bytes(content), suffix).trust is not Trust.SIGNED
        return
    theirs = checker.verdict(bytes(content), suffix, {ADA.id: ADA.pem})
    ours = check(bytes(content), suffix)
    if content.startswith(b"#!") and not content.split(b"\n")[0].decode("utf-8").isprintable():
        assert theirs == "valid" or ours.trust is not Trust.SIGNED  # ours is stricter about shebang lines
    else:
        assert (ours.trust is Trust.SIGNED) == (theirs == "valid")


# -- the real files -----------------------------------------------------------------------------------------


@cache
def real_pems() -> dict[str, str]:
    pems = {}
    for path in (shared("corpus") / "rye" / "keys" / "trusted").glob("*.toml"):
        pems[path.stem] = tomllib.loads(path.read_text(encoding="utf-8"))["public_key"]["pem"]
    assert sorted(pems) == ["4b987fd4e40303ac", "6ea18199041a1ea8"]
    return pems


def real_keys() -> Ring:
    owners = {"4b987fd4e40303ac": "leo", "6ea18199041a1ea8": "github-ci"}
    return Ring(
        *(
            TrustedKey(id=key_id, public=signing.public_of(pem) or b"", owner=owners[key_id])
            for key_id, pem in real_pems().items()
        )
    )


OUTCOMES = {
    "valid": "valid",
    "unsigned": "unsigned",
    "unsigned (old or placeholder marker line)": "unsigned",
    "untrusted-key": "untrusted",
}


@pytest.mark.requirement("rye.sign.real-tree")
def test_the_published_files_verify_with_their_real_keys() -> None:
    folder = shared("corpus") / "rye"
    counted: Counter[str] = Counter()
    for entry in json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))["files"]:
        expected = entry["expected"]["signature"]
        path = folder / entry["file"]
        content = path.read_bytes()
        vetted = check(content, path.suffix, real_keys())
        counted[expected] += 1
        if expected == "later-format":
            assert vetted.message.startswith("Later signature format, not verified here: P\n")
            continue
        assert said(vetted) == OUTCOMES[expected], path
        assert checker.verdict(content, path.suffix, real_pems()) == OUTCOMES[expected], path
        if expected == "valid":
            assert vetted.signer == entry["expected"]["key"]
    # Of the tree's 192 files those that are data lie here: no stale one among them (181 valid, 1 modified,
    # 10 unsigned in the whole of it).
    assert counted == {
        "valid": 44,
        "unsigned": 17,
        "unsigned (old or placeholder marker line)": 6,
        "untrusted-key": 8,
        "later-format": 29,
    }


@pytest.mark.requirement("rye.sign.real-tree")
def test_a_published_file_with_a_stale_hash_is_found() -> None:
    """As ``interpolation.py`` of the tree, which was edited after it was signed."""
    for path in sorted((shared("corpus") / "rye").glob("2026-*/**/.ai/tools/**/*.yaml")):
        content = path.read_bytes()
        if check(content, ".yaml", real_keys()).trust is Trust.SIGNED:
            assert said(check(content + b"\n", ".yaml", real_keys())) == "modified"


@pytest.mark.requirement("rye.sign.document")
def test_the_format_document_itself_verifies_over_its_unstripped_rest() -> None:
    content = (shared("specs") / "rye.md").read_bytes()
    assert signing.digest(content, ".md").startswith("77ae22d24144")
    vetted = check(content, ".md", real_keys(), "knowledge:rye/authoring/tool-format")
    assert (vetted.trust, vetted.signer) == (Trust.SIGNED, "6ea18199041a1ea8")
    rest = content.partition(b"\n")[2]
    assert hashlib.sha256(rest.strip()).hexdigest() != signing.digest(content, ".md")
    assert checker.verdict(content, ".md", real_pems()) == "valid"


@pytest.mark.requirement("rye.sign.document")
def test_front_matter_is_not_part_of_a_signed_document_and_its_text_is_stripped() -> None:
    signed = ADA.sign("---\ntitle: A\n---\n\n# Text\n\n", ".md", "knowledge:a")
    assert signing.digest(signed, ".md") == hashlib.sha256(b"# Text").hexdigest()
    assert check(signed.replace(b"title: A", b"title: B"), ".md").trust is Trust.SIGNED
    assert said(check(signed.replace(b"# Text", b"# Test"), ".md")) == "modified"
    plain = ADA.sign("# Text\n\n", ".md")
    assert said(check(plain.rstrip(b"\n"), ".md")) == "modified"


@pytest.mark.parametrize("head", ["", "#!/bin/sh\n"])
@pytest.mark.parametrize("prefix", ["#", "//", "<!--"])
def test_the_later_form_is_named_as_such_and_not_verified(head: str, prefix: str) -> None:
    text = f"{head}{prefix} ryeos:signed:2026-08-06T00:00:00Z:{'ab' * 32}:{'A' * 88}:{'cd' * 32}\nx: 1\n"
    vetted = check(text.encode(), ".yaml")
    assert vetted.trust is Trust.UNTRUSTED
    assert vetted.message.startswith("Later signature format, not verified here: P\n  Kind: tool\n")
    assert "ryeos:signed:" in vetted.message


# -- the order, and the words -------------------------------------------------------------------------------


@pytest.mark.requirement("rye.sign.order")
def test_unsigned_comes_before_hash_before_key_before_signature() -> None:
    strange = EVE.sign(BODY)
    assert said(check(BODY.encode())) == "unsigned"
    assert said(check(strange + b"more\n")) == "modified"  # modified file with unknown key
    assert said(check(strange)) == "untrusted"
    forged = strange.replace(EVE.id.encode(), ADA.id.encode())
    assert said(check(forged + b"more\n")) == "modified"
    assert said(check(forged)) == "bad"
    assert said(check(ADA.sign(BODY))) == "valid"


@pytest.mark.requirement("rye.sign.error-unsigned")
def test_the_text_for_an_unsigned_item() -> None:
    vetted = check(BODY.encode())
    assert (
        vetted.message
        == "Unsigned item: P\n  Kind: tool\n  Expected: rye:signed: header\n  Fix: rye sign tool:ID"
    )


@pytest.mark.requirement("rye.sign.error-modified")
def test_the_text_for_a_modified_item() -> None:
    signed = ADA.sign(BODY)
    line = signing.read_line(signed.decode("utf-8"), ".py")
    assert line is not None
    stated = signed.replace(line.digest.encode(), f"0123456789abcdef{line.digest[16:]}".encode())
    vetted = check(stated)
    assert vetted.trust is Trust.TAMPERED
    assert vetted.message == (
        f"Content modified since signing: P\n  Expected hash: 0123456789abcdef…\n"
        f"  Actual hash: {line.digest[:16]}…\n  Fix: Re-sign after editing:\n    rye sign tool:ID"
    )


@pytest.mark.requirement("rye.sign.error-untrusted")
def test_the_text_for_an_unknown_key() -> None:
    text = (
        "Untrusted key {key} for P\n  Item signed by: {key}\n  Trusted keys: {trusted}\n"
        "  Fix: Add this key to your trust store, or re-sign:\n    rye sign tool:ID"
    )
    vetted = check(EVE.sign(BODY), keys=Ring())
    assert vetted.trust is Trust.UNTRUSTED
    assert vetted.message == text.format(key=EVE.id, trusted="none")
    both = Ring(ADA.key(), Pen(3).key())
    listed = ", ".join(sorted((ADA.id, Pen(3).id)))
    assert check(EVE.sign(BODY), keys=both).message == text.format(key=EVE.id, trusted=listed)


@pytest.mark.requirement("rye.sign.error-bad")
def test_the_text_for_a_failed_signature() -> None:
    forged = EVE.sign(BODY).replace(EVE.id.encode(), ADA.id.encode())
    vetted = check(forged, keys=Ring(ADA.key("leo")))
    assert vetted.trust is Trust.TAMPERED
    assert vetted.message == (
        f"Ed25519 signature verification failed: P\n  Signed by: {ADA.id} (leo)\n"
        "  This may indicate the file was tampered with after signing"
    )


# -- attacks ------------------------------------------------------------------------------------------------


@pytest.mark.battery("G01", "G03")
@pytest.mark.parametrize("head", ["", "#!/usr/bin/env python3\n"])
def test_g01_every_flipped_bit_is_found_but_those_that_the_lock_covers(head: str) -> None:
    """The signature covers neither shebang nor time: the lock file's digest of all bytes does."""
    signed = ADA.sign(f"{head}x = 1\n")
    time_at = signed.index(TIME.encode())
    uncovered = {*range(len(head)), *range(time_at, time_at + len(TIME))}
    passed = set()
    for place in range(len(signed)):
        for bit in range(8):
            content = bytearray(signed)
            content[place] ^= 1 << bit
            if check(bytes(content)).trust is Trust.SIGNED:
                passed.add(place)
                assert hashlib.sha256(content).digest() != hashlib.sha256(signed).digest()
    assert passed <= uncovered
    assert passed  # the exception is real, and so is the need for a lock


@pytest.mark.battery("G04")
def test_g04_marks_of_order_and_other_spellings_of_letters_are_found() -> None:
    signed = ADA.sign("name = 'caf\u00e9'\n")
    assert said(check(b"\xef\xbb\xbf" + signed)) == "unsigned"
    assert said(check(signed.replace("\u00e9".encode(), "e\u0301".encode()))) == "modified"
    assert said(check(signed.rstrip(b"\n"))) == "modified"
    assert said(check(signed.replace(b"'\n", b"' \n"))) == "modified"


@pytest.mark.battery("G04")
def test_g04_bytes_that_are_no_text_never_verify() -> None:
    body = b"x = '\xff'\n"
    digest = hashlib.sha256(body).hexdigest()
    signature = base64_text(ADA.private.sign(digest.encode("ascii")))
    content = f"# rye:signed:{TIME}:{digest}:{signature}:{ADA.id}\n".encode() + body
    assert said(check(content)) == "modified"
    with pytest.raises(ValueError, match="not UTF-8"):
        ADA.sign(body)


@pytest.mark.battery("G05")
def test_g05_only_the_defined_place_counts() -> None:
    line = line_of(ADA.sign(BODY))
    placed = {
        "on line 2": f"# x\n{line}\n{BODY}",
        "after a blank line": f"\n{line}\n{BODY}",
        "after a blank": f" {line}\n{BODY}",
        "inside a docstring": f'"""\n{line}\n"""\n{BODY}',
        "after two shebang lines": f"#!/bin/sh\n#!/bin/sh\n{line}\n{BODY}",
        "at the end": f"{BODY}{line}\n",
    }
    for title, text in placed.items():
        assert said(check(text.encode())) == "unsigned", title
    assert said(check(f"{line}\n{line}\n{BODY}".encode())) == "modified"
    assert check(f"#!/bin/sh\n{line}\n{BODY}".encode()).trust is Trust.SIGNED  # rye.sign.shebang


@pytest.mark.battery("G06")
def test_g06_an_unknown_or_revoked_key_is_refused_with_its_id() -> None:
    signed = EVE.sign(BODY)
    before = Ring(ADA.key(), EVE.key())
    assert check(signed, keys=before).trust is Trust.SIGNED
    after = Ring(ADA.key())  # its file was removed
    vetted = check(signed, keys=after)
    assert vetted.trust is Trust.UNTRUSTED
    assert vetted.message.startswith(f"Untrusted key {EVE.id} for P\n")


@pytest.mark.battery("G07")
def test_g07_two_keys_of_one_id_are_both_tried_whole() -> None:
    signed = ADA.sign(BODY)
    double = TrustedKey(id=ADA.id, public=EVE.public, owner="eve")
    assert check(signed, keys=Ring(double, ADA.key())).trust is Trust.SIGNED
    assert check(signed, keys=Ring(ADA.key(), double)).trust is Trust.SIGNED
    assert said(check(signed, keys=Ring(double))) == "bad"
    # A signature of the other key, under the shared id, holds only while that key is trusted.
    theirs = EVE.sign(BODY).replace(EVE.id.encode(), ADA.id.encode())
    assert said(check(theirs, keys=Ring(ADA.key()))) == "bad"
    assert check(theirs, keys=Ring(ADA.key(), double)).trust is Trust.SIGNED


def with_signature(signature: str) -> bytes:
    digest = hashlib.sha256(BODY.encode("utf-8")).hexdigest()
    return f"# rye:signed:{TIME}:{digest}:{signature}:{ADA.id}\n{BODY}".encode()


def own_signature() -> bytes:
    return ADA.private.sign(hashlib.sha256(BODY.encode("utf-8")).hexdigest().encode("ascii"))


@pytest.mark.battery("G11")
def test_g11_a_number_above_the_groups_order_is_refused() -> None:
    signature = own_signature()
    assert check(with_signature(base64_text(signature))).trust is Trust.SIGNED
    number = int.from_bytes(signature[32:], "little")
    for times in range(1, 16):
        more = number + times * checker.L
        if more < 2**256:
            malleable = signature[:32] + more.to_bytes(32, "little")
            assert said(check(with_signature(base64_text(malleable)))) == "bad"
            assert not signing.is_strict(malleable)


def torsion() -> list[checker.Point]:
    """The eight points of small order, found by multiplying others by the group's large order."""
    found: set[checker.Point] = set()
    seed = 0
    while len(found) < 8:
        seed += 1
        point = checker.decode(hashlib.sha256(bytes([seed])).digest())
        if point is not None:
            found.add(checker.multiply(checker.L, point))
    return sorted(found)


def spellings(point: checker.Point) -> list[bytes]:
    """Every 32 bytes that some reader takes for the point."""
    y = point[1]
    return [
        (number | sign << 255).to_bytes(32, "little")
        for number in (y, y + checker.P)
        if number < 2**255
        for sign in (0, 1)
    ]


@pytest.mark.battery("G11")
def test_g11_no_key_of_small_order_is_anybodys() -> None:
    """All of them in every spelling, the all-zero key among them. The library takes some of these."""
    keys = [spelling for point in torsion() for spelling in spellings(point)]
    assert bytes(32) in keys
    message = b"ab" * 32
    taken = 0
    for public in keys:
        assert not signing.is_sound(public)
        # With a key of order 1, any point and its number is a signature of anything.
        signature = checker.encode(checker.multiply(7, checker.BASE)) + (7).to_bytes(32, "little")
        assert not ed25519.verify(public, message, signature)
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
            taken += 1
        except (InvalidSignature, ValueError):
            pass
    assert taken > 0  # so the check of our own is needed


@pytest.mark.battery("G11")
def test_g11_a_point_spelt_in_a_second_way_is_refused() -> None:
    for y in range(19):
        for sign in (0, 1):
            other = (y + checker.P | sign << 255).to_bytes(32, "little")
            assert not signing.is_sound(other)
            assert not signing.is_strict(other + own_signature()[32:])
    for public in (b"", bytes(31), bytes(33), ADA.public[:-1]):
        assert not signing.is_sound(public)
        assert not ed25519.verify(public, b"", own_signature())
    assert signing.is_sound(ADA.public)


@pytest.mark.battery("G11")
def test_g11_base64_with_junk_is_refused() -> None:
    good = base64_text(own_signature())
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(good[-1])
    spare = [alphabet[last + more] for more in range(1, 16)]  # the four bits that carry nothing
    junk = [
        *(good[:-1] + char for char in spare), good[:-1], f"{good}A", f"{good}=", f"{good}===", f"={good}",
        f"{good[:40]} {good[40:]}", f"{good[:40]}\t{good[40:]}", f"{good}\x00", f"{good}\u00e9",
        f"{good[:-1]}+", f"{good[:-1]}/", "", good + good,
    ]  # fmt: skip
    for text in junk:
        assert check(with_signature(text)).trust in (Trust.TAMPERED, Trust.UNSIGNED), text
    for text in (good, f"{good}=="):  # rye.sign.base64: padding variants are the format's own
        assert check(with_signature(text)).trust is Trust.SIGNED


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x00", " "])
@pytest.mark.parametrize("suffix", [".js", ".yaml", ".py", ".md"])
def test_nothing_can_be_slipped_in_behind_the_signature_on_its_line(separator: str, suffix: str) -> None:
    """JavaScript and YAML end a comment at characters that are no line ends here."""
    signed = ADA.sign("a: 1\n", suffix)
    for old in (f":{ADA.id}", f":{ADA.id}|a@b"):
        for new in (f"{old}{separator}evil()", f"{old}|a@b{separator}evil()"):
            content = signed.replace(f":{ADA.id}".encode(), new.encode())
            assert check(content, suffix).trust is not Trust.SIGNED


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x00"])
def test_nothing_can_be_slipped_in_behind_the_shebang_on_its_line(separator: str) -> None:
    signed = ADA.sign("#!/bin/sh\na: 1\n", ".yaml")
    content = signed.replace(b"#!/bin/sh", f"#!/bin/sh{separator}executor_id: evil".encode())
    assert said(check(content, ".yaml")) == "unsigned"


@pytest.mark.parametrize(
    ("shebang", "is_shebang"),
    [
        ("#!/usr/bin/env python3", True),
        ("#!/usr/bin/python3 -*- coding: utf-8 -*-", True),
        ("#!/usr/bin/python3 -*- coding:UTF8 -*-", True),
        ("#!/usr/bin/python3 -*- coding: utf-7 -*-", False),
        ("#!/usr/bin/python3 coding=raw_unicode_escape", False),
        ("#!/usr/bin/python3 coding: utf-8-sig", False),
    ],
)
def test_a_shebang_cannot_make_python_read_other_characters(shebang: str, is_shebang: bool) -> None:
    line = line_of(ADA.sign(BODY))
    vetted = check(f"{shebang}\n{line}\n{BODY}".encode())
    assert said(vetted) == ("valid" if is_shebang else "unsigned")
