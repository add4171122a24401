"""What a test needs is installed when the first such test runs, once, and announced before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests import installing
from tests.program import WAIT_S

APT = """#!/bin/sh
echo "apt-get $*" >> {log}
case "$*" in *install*) printf '#!/bin/sh\\n' > {bin}/chromium && /bin/chmod +x {bin}/chromium ;; esac
"""
NPM = """#!/bin/sh
echo "npm $*" >> {log}
/bin/mkdir -p {target}/node_modules && : > {target}/node_modules/.package-lock.json
"""


class Machine:
    """A machine that has these programs and no others; what they were asked, and what was said."""

    def __init__(self, folder: Path, **programs: str) -> None:
        self.bin, self.log, self.target = folder / "bin", folder / "log", folder / "servers"
        self.lock = folder / "build" / "lock"
        self.said: list[str] = []
        self.bin.mkdir()
        self.log.touch()
        for name, text in programs.items():
            program = self.bin / name.replace("_", "-")
            program.write_text(text.format(log=self.log, bin=self.bin, target=self.target), encoding="utf-8")
            program.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()

    def debian(self, *, uid: int = 0, **env: str) -> str:
        env = {"PATH": str(self.bin), **env}
        return installing.debian("chromium", self.said.append, env=env, uid=uid, lock=self.lock)

    def npm(self) -> str:
        env = {"PATH": str(self.bin)}
        return installing.npm_packages(self.said.append, target=self.target, env=env, lock=self.lock)


def test_root_reads_what_is_installed_unpinned_and_what_for(tmp_path: Path) -> None:
    machine = Machine(tmp_path, apt_get=APT)
    assert machine.debian() == ""
    (said,) = machine.said
    assert "chromium, for tests with a real browser" in said
    assert "unpinned" in said
    assert "NO_APT=1 make test" in said
    assert machine.asked == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends chromium",
    ]


def test_what_is_there_is_not_installed_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, apt_get=APT, npm=NPM)
    assert (machine.debian(), machine.npm()) == ("", "")
    machine.log.write_text("", encoding="utf-8")
    machine.said.clear()
    assert (machine.debian(), machine.npm()) == ("", "")
    assert (machine.asked, machine.said) == ([], [])


@pytest.mark.parametrize("how", [{"NO_APT": "1"}, {"uid": 1000}], ids=["NO_APT", "not-root"])
def test_nothing_is_installed_without_leave_and_the_reason_names_the_command(
    tmp_path: Path, how: dict[str, str]
) -> None:
    machine = Machine(tmp_path, apt_get=APT)
    assert machine.debian(**how) == "chromium is not installed (Debian, Ubuntu: apt-get install chromium)"  # type: ignore[arg-type]
    assert (machine.asked, machine.said) == ([], [])


def test_an_installation_that_fails_is_a_reason_to_skip(tmp_path: Path) -> None:
    fails = "#!/bin/sh\necho 'E: no such package' >&2\nexit 100\n"
    machine = Machine(tmp_path, apt_get=fails, npm=fails)
    assert machine.debian().endswith("apt-get could not: E: no such package")
    assert "npm could not install its packages: E: no such package" in machine.npm()


def test_a_machine_without_npm_says_how_to_get_it(tmp_path: Path) -> None:
    assert Machine(tmp_path).npm() == "npm is not installed (Debian, Ubuntu: apt-get install npm)"


def test_workers_that_need_it_at_once_install_it_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, npm=NPM)
    reasons: list[str] = []
    workers = [threading.Thread(target=lambda: reasons.append(machine.npm())) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WAIT_S)
    assert reasons == [""] * 8
    assert len(machine.asked) == len(machine.said) == 1
