"""Key files: who counts in which tier, who may write where, and the pair of keys that signs."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import shared
from tests.trust.test_signing import ADA, BODY, EVE, GITHUB_CI, LEO, Pen, check
from toolcrib.errors import SigningError
from toolcrib.model import Trust
from toolcrib.store.trusted import digest_of, key_files
from toolcrib.trust import keys, signing
from toolcrib.trust.keys import Keyring, KeyText, Tier

BOB = Pen(4)
LEO_ID, CI_ID = "4b987fd4e40303ac", "6ea18199041a1ea8"


def folder(space: Path) -> Path:
    path = space / ".ai" / "config" / "keys" / "trusted"
    path.mkdir(parents=True, exist_ok=True)
    for part in (space, space / ".ai", space / ".ai/config", space / ".ai/config/keys", path):
        part.chmod(0o755)
    return path


def text_of(pen: Pen, owner: str = "somebody") -> str:
    return keys.key_toml(KeyText(id=pen.id, pem=pen.pem, public=pen.public, owner=owner))


def put(space: Path, pen: Pen, *, by: Pen | None = None, name: str | None = None, text: str = "") -> Path:
    """A key file in a space, signed where somebody signs it."""
    content = (text or text_of(pen)).encode("utf-8")
    if by is not None:
        content = by.sign(content, ".toml", "config:key")
    path = folder(space) / f"{name or pen.id}.toml"
    path.write_bytes(content)
    path.chmod(0o644)
    return path


def real(space: Path, *names: str) -> None:
    for name in names:
        content = (shared("corpus") / "rye" / "keys" / "trusted" / f"{name}.toml").read_bytes()
        path = folder(space) / f"{name}.toml"
        path.write_bytes(content)
        path.chmod(0o644)


class Spaces:
    def __init__(self, tmp_path: Path) -> None:
        self.user, self.system, self.project = (tmp_path / name for name in ("user", "system", "project"))
        for path in (self.user, self.system, self.project):
            path.mkdir(mode=0o755)

    def ring(self, *, trusted: bool = False) -> Keyring:
        return Keyring(
            str(self.user),
            (str(self.system),),
            str(self.project),
            trusted=self.project_keys if trusted else dict,
        )

    def project_keys(self) -> dict[str, str]:
        return {path: digest_of(Path(path).read_bytes()) for path in key_files(str(self.project))}


@pytest.fixture
def spaces(tmp_path: Path) -> Spaces:
    return Spaces(tmp_path)


def why(ring: Keyring) -> list[str]:
    return [problem.message for problem in ring.now().problems()]


# -- the three tiers ----------------------------------------------------------------------------------------


@pytest.mark.requirement("rye.trust.lookup")
def test_keys_are_looked_for_in_the_spaces_folders(spaces: Spaces) -> None:
    put(spaces.user, ADA)
    put(spaces.system, BOB)
    put(spaces.project, EVE)
    ring = spaces.ring(trusted=True)
    assert ring.ids() == sorted((ADA.id, BOB.id, EVE.id))
    assert [key.public for key in ring.find(BOB.id)] == [BOB.public]
    assert {file.tier: file.id for file in ring.now().files()} == {
        Tier.USER: ADA.id,
        Tier.SYSTEM: BOB.id,
        Tier.PROJECT: EVE.id,
    }


@pytest.mark.requirement("rye.trust.lookup")
def test_the_real_key_file_without_a_version_is_accepted(spaces: Spaces) -> None:
    real(spaces.user, LEO_ID)
    text = (folder(spaces.user) / f"{LEO_ID}.toml").read_text(encoding="utf-8")
    assert "version" not in text
    (key,) = spaces.ring().find(LEO_ID)
    assert (key.id, key.owner, key.public) == (LEO_ID, "leo", signing.public_of(LEO))
    assert why(spaces.ring()) == []


@pytest.mark.requirement("rye.trust.lookup")
def test_what_we_write_is_read_again_with_all_its_fields() -> None:
    key = KeyText(id=CI_ID, pem=GITHUB_CI, public=b"", owner='a "b" \\ c', attestation="met at a fair")
    found = keys.read_key(keys.key_toml(key).encode("utf-8"))
    assert isinstance(found, KeyText)
    assert (found.id, found.pem, found.owner, found.attestation) == (
        CI_ID, GITHUB_CI, 'a "b" \\ c', "met at a fair",
    )  # fmt: skip


@pytest.mark.requirement("rye.trust.fp-match")
def test_a_renamed_key_file_is_ignored_with_a_warning(spaces: Spaces) -> None:
    put(spaces.user, EVE, name=ADA.id)
    ring = spaces.ring()
    assert ring.find(ADA.id) == ring.find(EVE.id) == ()
    assert ring.ids() == []
    assert why(ring) == [f"this key is not trusted: the file is named {ADA.id!r} and holds the key {EVE.id}"]
    assert check(EVE.sign(BODY).replace(EVE.id.encode(), ADA.id.encode()), keys=ring).trust is Trust.UNTRUSTED


@pytest.mark.requirement("rye.trust.fp-match")
def test_a_fingerprint_that_is_not_the_keys_is_ignored_with_a_warning(spaces: Spaces) -> None:
    put(spaces.user, EVE, text=text_of(EVE).replace(EVE.id, ADA.id))
    put(spaces.user, ADA, text=text_of(EVE).replace(EVE.id, ADA.id))
    assert spaces.ring().ids() == []
    said = f"this key is not trusted: it says fingerprint {ADA.id!r} and holds the key {EVE.id}"
    assert why(spaces.ring()) == [said, said]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no public_key.pem"),
        ("x = [", "not valid TOML"),
        ("public_key = 5", "it has no public_key.pem"),
        ("[public_key]\npem = 5", "it has no public_key.pem"),
        ('[public_key]\npem = "-----BEGIN RSA PUBLIC KEY-----"', "is no Ed25519 public key"),
        ('[public_key]\npem = """' + "x" * 20_000 + '"""', "a key file may have"),
        ('x = "\\ud800"', "not valid TOML"),
        ("[" * 5000, "not valid TOML"),
    ],
)
def test_a_file_that_is_no_key_is_ignored_with_a_warning(spaces: Spaces, text: str, reason: str) -> None:
    put(spaces.user, ADA).write_text(text, encoding="utf-8")
    (said,) = why(spaces.ring())
    assert reason in said
    assert spaces.ring().ids() == []


@pytest.mark.battery("G11")
def test_g11_a_key_of_small_order_cannot_be_trusted(spaces: Spaces) -> None:
    for public in (bytes(32), bytes([1, *bytes(31)]), (2**255 - 20).to_bytes(32, "little")):
        pem = signing.pem_of(public)
        text = keys.key_toml(KeyText(id=signing.key_id(pem), pem=pem, public=public))
        (folder(spaces.user) / f"{signing.key_id(pem)}.toml").write_text(text, encoding="utf-8")
        assert keys.read_key(pem.encode()) == "public_key.pem holds a number that is nobody's key"
    assert spaces.ring().ids() == []


# -- who signed the key file --------------------------------------------------------------------------------


@pytest.mark.requirement("rye.trust.file-signature")
@pytest.mark.parametrize("tier", ["user", "system"])
def test_an_unsigned_or_self_signed_key_file_is_accepted(spaces: Spaces, tier: str) -> None:
    space = getattr(spaces, tier)
    put(space, ADA)
    put(space, BOB, by=BOB)
    assert spaces.ring().ids() == sorted((ADA.id, BOB.id))


@pytest.mark.requirement("rye.trust.file-signature")
def test_a_cross_signed_key_file_is_accepted_when_its_signer_is_trusted(spaces: Spaces) -> None:
    real(spaces.user, CI_ID)  # signed by the other one
    assert spaces.ring().find(CI_ID) == ()
    assert why(spaces.ring()) == [f"this key is not trusted: it is signed by {LEO_ID}, which is not trusted"]
    real(spaces.system, LEO_ID)
    assert spaces.ring().ids() == [LEO_ID, CI_ID]
    (file,) = [file for file in spaces.ring().now().files() if file.id == CI_ID]
    assert (file.signed_by, file.owner) == (LEO_ID, "github-ci")


@pytest.mark.requirement("rye.trust.file-signature")
@pytest.mark.parametrize("by", [ADA, BOB])
def test_a_badly_signed_key_file_is_ignored(spaces: Spaces, by: Pen) -> None:
    put(spaces.user, BOB)
    path = put(spaces.user, ADA, by=by)
    assert ADA.id in spaces.ring().ids()
    path.write_text(path.read_text(encoding="utf-8").replace("somebody", "nobody"), encoding="utf-8")
    assert spaces.ring().ids() == [BOB.id]
    (said,) = why(spaces.ring())
    assert "does not hold" in said


def test_keys_that_vouch_only_for_each_other_do_not_count(spaces: Spaces) -> None:
    put(spaces.user, ADA, by=EVE)
    put(spaces.user, EVE, by=ADA)
    assert spaces.ring().ids() == []
    chain = [Pen(number) for number in range(50, 80)]
    for pen, signer in pairwise(chain):  # as deep as one likes
        put(spaces.system, pen, by=signer)
    put(spaces.system, chain[-1])
    assert chain[0].id not in spaces.ring().ids()
    assert chain[-2].id in spaces.ring().ids()


@pytest.mark.requirement("rye.trust.project-keys")
@pytest.mark.parametrize("by", [None, EVE])
def test_a_cloned_project_cannot_vouch_for_itself(spaces: Spaces, by: Pen | None) -> None:
    put(spaces.project, EVE, by=by)
    vetted = check(EVE.sign(BODY), keys=spaces.ring())
    assert vetted.message.startswith(f"Untrusted key {EVE.id} for P\n")
    assert why(spaces.ring()) == ["this key is not trusted: a project cannot vouch for its own keys"]
    assert check(EVE.sign(BODY), keys=spaces.ring(trusted=True)).trust is Trust.SIGNED


@pytest.mark.requirement("rye.trust.project-keys")
@pytest.mark.parametrize("tier", ["user", "system"])
def test_a_projects_key_counts_when_a_key_of_the_hosts_signed_it(spaces: Spaces, tier: str) -> None:
    put(spaces.project, EVE, by=ADA)
    assert spaces.ring().ids() == []
    put(getattr(spaces, tier), ADA)
    assert check(EVE.sign(BODY), keys=spaces.ring()).trust is Trust.SIGNED


@pytest.mark.requirement("rye.trust.project-keys")
def test_only_the_very_bytes_of_a_projects_key_that_were_trusted_count(spaces: Spaces) -> None:
    """Attack: a key that comes into a trusted project between the look at what is trusted and its reading."""
    put(spaces.project, ADA)
    ring = Keyring(str(spaces.user), (), str(spaces.project), trusted=partial(dict, spaces.project_keys()))
    put(spaces.project, EVE)
    assert ring.ids() == [ADA.id]
    assert check(EVE.sign(BODY), keys=ring).trust is Trust.UNTRUSTED


@pytest.mark.requirement("rye.trust.project-keys")
def test_a_project_that_brings_the_signer_along_vouches_for_itself_all_the_same(spaces: Spaces) -> None:
    put(spaces.project, EVE, by=ADA)
    put(spaces.project, ADA)
    assert spaces.ring().ids() == []
    assert spaces.ring(trusted=True).ids() == sorted((ADA.id, EVE.id))


def test_a_project_cannot_stand_in_for_a_key_of_the_users(spaces: Spaces) -> None:
    """The project's file of the same name adds nothing and takes nothing away."""
    put(spaces.user, ADA)
    put(spaces.project, ADA, text="broken = [")
    assert [key.public for key in spaces.ring().find(ADA.id)] == [ADA.public]


# -- changes ------------------------------------------------------------------------------------------------


@pytest.mark.battery("G06")
def test_g06_taking_a_key_away_revokes_it_at_once(spaces: Spaces) -> None:
    path = put(spaces.user, ADA)
    ring = spaces.ring()
    signed = ADA.sign(BODY)
    assert check(signed, keys=ring).trust is Trust.SIGNED
    assert ring.now() is ring.now()
    path.unlink()
    assert check(signed, keys=ring).trust is Trust.UNTRUSTED
    assert keys.trust(str(spaces.user), KeyText(id=ADA.id, pem=ADA.pem, public=ADA.public)) == str(path)
    assert check(signed, keys=ring).trust is Trust.SIGNED
    assert keys.distrust(str(spaces.user), ADA.id) == str(path)
    assert check(signed, keys=ring).trust is Trust.UNTRUSTED
    assert keys.distrust(str(spaces.user), ADA.id) is None
    assert keys.distrust(str(spaces.user), "../../x") is None


@pytest.mark.battery("G06")
def test_g06_taking_the_signer_of_a_key_away_revokes_both(spaces: Spaces) -> None:
    path = put(spaces.user, ADA)
    put(spaces.user, BOB, by=ADA)
    ring = spaces.ring()
    assert ring.find(BOB.id)
    path.unlink()
    assert not ring.find(BOB.id)


def test_the_keys_are_the_same_object_until_something_changes(spaces: Spaces) -> None:
    ring = spaces.ring()
    now = ring.now()
    assert now.find(ADA.id) == ()
    assert ring.now() is now
    path = put(spaces.user, ADA)
    assert ring.now() is not now
    now = ring.now()
    assert now.find(ADA.id)
    path.chmod(0o666)
    assert ring.now() is not now
    assert ring.find(ADA.id) == ()


def test_a_key_file_that_was_changed_on_its_way_is_found(spaces: Spaces) -> None:
    put(spaces.user, ADA)
    for by, is_found in ((None, False), (BOB, True), (ADA, True), (EVE, False)):
        path = put(spaces.project, BOB, by=by)
        content = path.read_bytes().replace(b"somebody", b"leo")
        key = keys.read_key(content)
        assert isinstance(key, KeyText)
        assert key.owner == "leo"
        assert (keys.flaw(content, key, spaces.ring()) is not None) == is_found
        assert keys.flaw(path.read_bytes(), key, spaces.ring()) is None


def test_a_space_that_others_may_write_and_that_has_no_keys_is_no_problem(spaces: Spaces) -> None:
    put(spaces.user, ADA)
    spaces.project.chmod(0o777)
    assert why(spaces.ring()) == []
    put(spaces.project, BOB, by=ADA)
    spaces.project.chmod(0o777)
    assert spaces.ring().ids() == [ADA.id]
    assert "others may write to it (mode 0777)" in why(spaces.ring())[0]


# -- who may write ------------------------------------------------------------------------------------------


@pytest.mark.battery("G12")
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
@pytest.mark.parametrize("part", ["", ".ai", ".ai/config", ".ai/config/keys", ".ai/config/keys/trusted"])
def test_g12_a_trust_store_that_others_may_write_gives_no_key(spaces: Spaces, part: str, mode: int) -> None:
    put(spaces.user, ADA)
    assert spaces.ring().ids() == [ADA.id]
    (spaces.user / part).chmod(mode)
    ring = spaces.ring()
    assert ring.find(ADA.id) == ()
    assert check(ADA.sign(BODY), keys=ring).trust is Trust.UNTRUSTED
    (said,) = why(ring)
    assert "no key is read from this folder" in said
    assert f"others may write to it (mode {mode:04o})" in said
    with pytest.raises(SigningError, match="no key is read from this folder"):
        keys.trust(str(spaces.user), KeyText(id=BOB.id, pem=BOB.pem, public=BOB.public))


@pytest.mark.battery("G12")
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_g12_a_key_file_that_others_may_write_does_not_count(spaces: Spaces, mode: int) -> None:
    put(spaces.user, ADA).chmod(mode)
    put(spaces.user, BOB)
    assert spaces.ring().ids() == [BOB.id]
    assert why(spaces.ring()) == [f"this key is not trusted: others may write to it (mode {mode:04o})"]


@contextmanager
def given_away(path: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away; run the tests as root to see this refused")
    os.chown(path, 54321, -1)
    yield


@pytest.mark.battery("G12")
@pytest.mark.parametrize("part", ["", ".ai", ".ai/config/keys/trusted"])
def test_g12_a_trust_store_of_somebody_elses_gives_no_key(spaces: Spaces, part: str) -> None:
    put(spaces.user, ADA)
    with given_away(spaces.user / part):
        assert spaces.ring().ids() == []
        assert "it belongs to somebody else" in why(spaces.ring())[0]


@pytest.mark.battery("G12")
def test_g12_a_key_file_of_somebody_elses_or_a_link_does_not_count(spaces: Spaces, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.toml").write_text(text_of(BOB), encoding="utf-8")
    (folder(spaces.user) / f"{BOB.id}.toml").symlink_to(tmp_path / "elsewhere.toml")
    assert spaces.ring().ids() == []
    assert why(spaces.ring()) == ["this key is not trusted: it is a link"]
    with given_away(put(spaces.system, ADA)):
        assert spaces.ring().ids() == []


def test_a_fifo_in_the_trust_store_does_not_hang(spaces: Spaces) -> None:
    os.mkfifo(folder(spaces.user) / f"{ADA.id}.toml")
    assert spaces.ring().ids() == []
    assert why(spaces.ring()) == ["this key is not trusted: it is no regular file"]


# -- the pair of keys that signs ----------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.requirement("rye.sign.key-files")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_key_pair_has_the_right_modes_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    program = (
        "import os, sys\nfrom toolcrib.trust import keys\n"
        f"os.umask({umask})\n"
        "folder = keys.signing_folder(sys.argv[1], {})\n"
        "keys.trust(sys.argv[1], keys.generate(folder))\nprint(folder)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(home)], capture_output=True, text=True, timeout=60, check=True
    )
    pair = Path(run.stdout.strip())
    assert pair == home / ".ai/config/keys/signing"
    assert (mode(pair), mode(pair / "private_key.pem"), mode(pair / "public_key.pem")) == (
        0o700,
        0o600,
        0o644,
    )
    assert (pair / "private_key.pem").read_text(encoding="ascii").startswith("-----BEGIN PRIVATE KEY-----\n")
    assert sorted(path.name for path in pair.iterdir()) == ["private_key.pem", "public_key.pem"]
    key = keys.load_signing_key(str(pair))
    assert Keyring(str(home)).ids() == [key.id]
    pem = (pair / "public_key.pem").read_text(encoding="ascii")
    assert key.id == signing.key_id(pem)


@pytest.mark.requirement("rye.sign.key-files")
def test_the_variable_names_another_folder(tmp_path: Path) -> None:
    assert keys.signing_folder("/home/ada", {}) == "/home/ada/.ai/config/keys/signing"
    assert keys.signing_folder("/home/ada", {"RYE_SIGNING_KEY_DIR": "/ci/keys"}) == "/ci/keys"
    assert (
        keys.signing_folder("/home/ada", {"RYE_SIGNING_KEY_DIR": ""}) == "/home/ada/.ai/config/keys/signing"
    )


@pytest.mark.requirement("rye.sign.key-files")
@pytest.mark.parametrize("wrong", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_private_key_that_others_may_read_is_refused(tmp_path: Path, wrong: int) -> None:
    keys.generate(str(tmp_path / "keys"))
    (tmp_path / "keys" / "private_key.pem").chmod(wrong)
    with pytest.raises(SigningError, match=rf"others may read this private key \(mode {wrong:04o}\)"):
        keys.load_signing_key(str(tmp_path / "keys"))


@pytest.mark.battery("G12")
@pytest.mark.parametrize("wrong", [0o770, 0o707, 0o777])
def test_g12_a_folder_of_keys_that_others_may_write_is_refused(tmp_path: Path, wrong: int) -> None:
    keys.generate(str(tmp_path / "keys"))
    (tmp_path / "keys").chmod(wrong)
    with pytest.raises(SigningError, match="others may write to it"):
        keys.load_signing_key(str(tmp_path / "keys"))
    (tmp_path / "keys" / "private_key.pem").unlink()
    (tmp_path / "keys" / "public_key.pem").unlink()
    with pytest.raises(SigningError, match="others may write to it"):
        keys.generate(str(tmp_path / "keys"))


@pytest.mark.battery("G12")
def test_g12_a_private_key_of_somebody_elses_or_a_link_is_refused(tmp_path: Path) -> None:
    keys.generate(str(tmp_path / "keys"))
    private = tmp_path / "keys" / "private_key.pem"
    private.rename(tmp_path / "moved.pem")
    private.symlink_to(tmp_path / "moved.pem")
    with pytest.raises(SigningError, match="it is a link"):
        keys.load_signing_key(str(tmp_path / "keys"))
    private.unlink()
    (tmp_path / "moved.pem").rename(private)
    with given_away(private), pytest.raises(SigningError, match="belongs to somebody else"):
        keys.load_signing_key(str(tmp_path / "keys"))


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    pair = tmp_path / "keys"
    first = keys.generate(str(pair))
    with pytest.raises(SigningError, match="there is a key already"):
        keys.generate(str(pair))
    (pair / "private_key.pem").rename(tmp_path / "kept.pem")
    with pytest.raises(SigningError, match="there is a key already"):
        keys.generate(str(pair))
    assert keys.public_key(str(pair)) == first


@pytest.mark.requirement("rye.sign.no-auto-key")
def test_without_a_key_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(SigningError) as refused:
        keys.load_signing_key(str(tmp_path / "keys"))
    assert refused.value.message.startswith("No signing keypair found. Generate one first: ")
    assert list(tmp_path.iterdir()) == []


def test_the_public_key_must_be_the_private_ones(tmp_path: Path) -> None:
    pair = tmp_path / "keys"
    made = keys.generate(str(pair))
    (pair / "public_key.pem").write_text(EVE.pem, encoding="ascii")
    with pytest.raises(SigningError, match="not the public key of private_key"):
        keys.load_signing_key(str(pair))
    (pair / "public_key.pem").unlink()
    assert keys.load_signing_key(str(pair)).id == made.id


@pytest.mark.parametrize("form", ["pkcs8", "pkcs8 with the public key", "older pkcs8 with the public key"])
def test_keys_of_other_programs_are_read(tmp_path: Path, form: str) -> None:
    seed = ADA.private.private_bytes_raw()
    head, tail = "302e020100", b""
    if form != "pkcs8":
        head, tail = "3051020101", bytes.fromhex("812100") + ADA.public
    if form.startswith("older"):
        head, tail = "3053020101", bytes.fromhex("a123032100") + ADA.public
    der = bytes.fromhex(f"{head}300506032b657004220420") + seed + tail
    write_private(tmp_path, der)
    key = keys.load_signing_key(str(tmp_path / "keys"))
    assert key.id == ADA.id
    assert key.sign(b"x") == ADA.private.sign(b"x")


def write_private(tmp_path: Path, der: bytes) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    text = f"-----BEGIN PRIVATE KEY-----\n{base64.b64encode(der).decode()}\n-----END PRIVATE KEY-----\n"
    (tmp_path / "keys" / "private_key.pem").write_text(text, encoding="ascii")
    (tmp_path / "keys" / "private_key.pem").chmod(0o600)


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path, bytes.fromhex("302e020100300506032b656e04220420") + bytes(32))  # X25519
    with pytest.raises(SigningError, match="it is no Ed25519 key"):
        keys.load_signing_key(str(tmp_path / "keys"))
    for text in ("", "nonsense", EVE.pem, "\udcff"):
        (tmp_path / "keys" / "private_key.pem").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(SigningError, match="it is no Ed25519 key"):
            keys.load_signing_key(str(tmp_path / "keys"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_nothing_is_left_in_a_home_of_somebody_else(tmp_path: Path) -> None:
    """As under sudo that keeps the user's HOME: a folder of root's there closes the store to its user."""
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(SigningError, match="it belongs to somebody else") as caught:
        keys.trust(str(tmp_path), KeyText(id=BOB.id, pem=BOB.pem, public=BOB.public))
    assert "sudo -H" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []
