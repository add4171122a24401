"""What works is found by use, and what is taken away is noticed, told and never silently done without."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from toolcrib.model import Level
from toolcrib.sandbox import _kernel, probe
from toolcrib.sandbox.supervised import Probed, installed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are those of Linux")

TAKEN_AWAY = """
import json, struct, sys
from toolcrib.sandbox import Cancel, Start, _kernel, probe
from toolcrib.model import Level, Permit, Profile

PRCTL = {"x86_64": 157, "aarch64": 167}[_kernel.architecture()]
words = [(0x20, 0, 0, 0)]
for number in json.loads(sys.argv[1]):
    words += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | int(sys.argv[2]))]
    if number == PRCTL:  # refused only where it would switch a filter on
        words[-1:] = [(0x20, 0, 0, 16), (0x15, 0, 1, 22), words[-1], (0x06, 0, 0, 0x7FFF0000)]
        words[-5] = (0x15, 0, 4, number)
words.append((0x06, 0, 0, 0x7FFF0000))
_kernel.no_new_privileges()
_kernel.restrict_thread(None, b"".join(struct.pack("=HBBI", *word) for word in words))

sandbox = probe.choose()
found = []
for require in Level:
    permit = Permit(profile=Profile.CLOSED, level=require)
    start = Start(program="/bin/echo", argv=("echo", "ran"), env={}, cwd="/", permit=permit)
    ending = sandbox.run(start, Cancel())
    found.append([ending.end.value, ending.stdout.decode(), ending.layers, ending.reason])
tried = probe.try_layers()
sandbox.close()
print(json.dumps({"level": sandbox.level, "found": found, "report": [
    [layer.name, layer.works, layer.reason, layer.fix] for layer in probe.report(tried)]}))
"""
LANDLOCK = [444, 445, 446]
SECCOMP = [157, 317] if os.uname().machine == "x86_64" else [167, 277]
LOOKING = [437, 332] if os.uname().machine == "x86_64" else [437, 291]
"""openat2 and statx."""
NAMESPACES = [272, 308, 428, 429, 442, 165] if os.uname().machine == "x86_64" else [97, 268, 40]


def without(calls: list[int], code: int) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_AWAY, json.dumps(calls), str(code)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("reason", "fix"),
    [("can't start new thread", "ulimit -u"), ("Too many open files", "ulimit -n"),
     ("Cannot allocate memory", "ulimit -v"), ("Resource temporarily unavailable", "ulimit -u")],
)  # fmt: skip
def test_a_layer_that_only_lacked_something_has_the_limit_as_its_fix(reason: str, fix: str) -> None:
    tried = probe.Tried(
        landlock_reason=reason, seccomp_reason=reason, spawner=Probed(errors={"mount-namespace": reason})
    )
    found = {layer.name: layer.fix for layer in probe.report(tried)}
    assert all(fix in found[name] for name in ("landlock", "seccomp", "mount-namespace"))
    assert found["spawner"] == ""


_FEW = """
import os, resource, sys
from toolcrib.sandbox import probe
resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))
told = []
sandbox = probe.choose(told=told.append)
print(sandbox.level, *told)
sandbox.close()
"""


def test_who_gets_a_lower_level_is_told_why() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FEW], capture_output=True, text=True, timeout=60, check=True
    )
    assert "supervised" not in done.stdout
    assert "Too many open files" in done.stdout or installed() is None, done


@pytest.mark.battery("L08")
@pytest.mark.parametrize("code", [38, 1], ids=["ENOSYS", "EPERM"])
def test_l08_without_landlock_the_best_there_is_runs_and_more_is_refused(code):
    found = without(LANDLOCK, code)
    assert found["level"] == "portable"
    portable, restricted, supervised = found["found"]
    assert portable[:2] == ["exited", "ran\n"]
    assert "landlock" not in portable[2]
    assert [restricted[:2], supervised[:2]] == [["unavailable", ""]] * 2
    assert "only portable works here" in restricted[3]
    (landlock,) = [layer for layer in found["report"] if layer[0] == "landlock"]
    assert landlock[1] is False
    assert "Landlock" in landlock[3]


@pytest.mark.battery("L08")
def test_l08_without_seccomp_the_network_is_not_called_closed():
    found = without(SECCOMP, 1)
    assert found["level"] == "portable"
    portable, restricted, supervised = found["found"]
    assert portable[:2] == ["exited", "ran\n"]
    assert not {"seccomp", "network:none"} & set(portable[2])
    assert [restricted[0], supervised[0]] == ["unavailable", "unavailable"]
    assert {layer[0]: layer[1] for layer in found["report"]}["seccomp"] is False


@pytest.mark.battery("L08")
def test_l08_without_namespaces_everything_else_holds_and_the_fix_is_told():
    if not probe.try_layers().namespaces:
        pytest.skip("namespaces do not work here anyway; allow them to run this")
    found = without(NAMESPACES, 1)
    names = {layer[0]: layer for layer in found["report"]}
    assert names["mount-namespace"][1] is False
    assert names["mount-namespace"][3]
    ran = found["found"][0]
    assert ran[:2] == ["exited", "ran\n"]
    assert {"landlock", "seccomp"} <= set(ran[2])
    assert "mount-namespace" not in ran[2]


@pytest.mark.battery("L08")
@pytest.mark.parametrize("call", LOOKING, ids=["openat2", "statx"])
def test_l08_where_mounts_cannot_be_looked_at_there_are_no_namespaces(call):
    """Else every call that shows checked files would be refused, as if somebody had swapped them."""
    if not probe.try_layers().namespaces:
        pytest.skip("namespaces do not work here anyway; allow them to run this")
    found = without([call], 38)
    names = {layer[0]: layer for layer in found["report"]}
    assert names["mount-namespace"][1] is False
    assert found["found"][0][:2] == ["exited", "ran\n"]


@pytest.mark.parametrize(
    ("tried", "level"),
    [
        (probe.Tried(), Level.PORTABLE),
        (probe.Tried(landlock=7), Level.PORTABLE),
        (probe.Tried(seccomp=True, spawner=Probed()), Level.PORTABLE),
        (probe.Tried(landlock=1, seccomp=True), Level.RESTRICTED),
        (probe.Tried(landlock=7, seccomp=True, spawner=Probed(errors={"subreaper": "no"})), Level.RESTRICTED),
        (probe.Tried(landlock=7, seccomp=True, spawner=Probed()), Level.SUPERVISED),
    ],
)
def test_a_level_is_named_only_when_all_of_it_works(tried, level):
    assert tried.level is level
    assert [probe.is_enough(tried, least) for least in Level] == [
        least <= level for least in _in_order(level)
    ]
    for layer in probe.report(tried):
        assert layer.means
        assert bool(layer.fix) is not layer.works


def _in_order(level: Level) -> list:
    """Levels as numbers that compare: those up to ``level`` come before the others."""
    place = [*Level].index(level)
    return [_Place(number <= place) for number in range(len(Level))]


class _Place:
    def __init__(self, reached: bool) -> None:
        self.reached = reached

    def __le__(self, _: object) -> bool:
        return self.reached


def test_trying_leaves_the_host_unrestricted():
    probe.try_layers()
    assert os.listdir("/")
    with open("/proc/self/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("0", "0")


def test_a_sealed_file_holds_its_bytes_for_good():
    fd = _kernel.seal(b"#!/bin/sh\necho sealed\n", "tool")
    try:
        for change in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 0)):
            with pytest.raises(PermissionError):
                change()
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            assert file.read() == b"#!/bin/sh\necho sealed\n"
    finally:
        os.close(fd)
