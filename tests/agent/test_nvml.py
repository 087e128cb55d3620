"""The NVML reader with the real binding, which loads a library that is built here."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.gpu import GpuProcess
from agent.host.nvml import AGAIN_SECONDS, NvmlReader
from agent.host.podof import uid_in
from agent.host.source import Source
from tests.agent.trees import CID, UID_BE, UID_LS
from tests.agent.twins import FakeClock
from tests.patience import PATIENCE

pynvml = pytest.importorskip("pynvml", reason="the NVML binding (extra gpu) is not installed")
COMPILER = shutil.which("cc")
SOURCE = Path(__file__).resolve().parent.parent / "emulators/nvml/libnvml.c"
GIB = 1 << 30

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the stand-in with")

TWO = """driver loaded
gpu GPU-a total=1000 used=300 free=600 util=55 temp=61 ecc=2
gpu GPU-b total=2000 used=100 free=1900 util=0 temp=40 ecc=0
process 0 41 120
process 0 42 -1
process 0 41 90 graphics
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(path), str(SOURCE)], check=True
    )
    # The binding asks for the name; the loader gives it what is loaded under that name already.
    ctypes.CDLL(str(path))
    return path


class Rig:
    def __init__(self, base, monkeypatch):
        self.script = base / "gpus"
        self.proc = base / "proc"
        self.clock = FakeClock()
        monkeypatch.setenv("SLACKTIDE_FAKE_NVML", str(self.script))
        self.reader = NvmlReader(str(self.proc), self.clock)

    def says(self, text):
        self.script.write_text(text)

    def process(self, pid, path):
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(f"4:memory:{path}\n0::/\n")


@pytest.fixture
def rig(library, tmp_path, monkeypatch):
    made = Rig(tmp_path, monkeypatch)
    yield made
    made.reader.close()


def test_cards_with_all_that_they_tell_and_processes_by_pod(rig):
    rig.says(TWO)
    rig.process(41, f"/kubepods/besteffort/pod{UID_BE}/{CID}")
    cards = rig.reader.read()
    assert cards is not None
    assert rig.reader.why_not is None
    first, second = cards
    assert (first.index, first.uuid, first.name) == (0, "GPU-a", "Fake 0")
    assert (first.memory_total_bytes, first.memory_used_bytes, first.free_block_bytes) == (1000, 300, None)
    assert (first.utilisation_percent, first.temperature_celsius, first.errors) == (55.0, 61, 2)
    assert first.processes == (
        GpuProcess(pid=41, memory_bytes=120, uid=UID_BE),
        GpuProcess(pid=42, memory_bytes=None, uid=None),
    )
    assert (second.utilisation_percent, second.processes) == (0.0, ())


def test_what_a_card_does_not_tell_is_none_never_zero(rig):
    rig.says("driver loaded\ngpu GPU-a\n")
    (card,) = rig.reader.read()
    assert (card.utilisation_percent, card.memory_total_bytes, card.memory_used_bytes) == (None, None, None)
    assert (card.temperature_celsius, card.errors, card.free_block_bytes, card.processes) == (None, None, None, ())


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature", "nvmlDeviceGetName"])
def test_one_call_that_fails_takes_only_its_own_figure(rig, call):
    rig.says(f"{TWO}error {call} 0 999\n")
    first, second = rig.reader.read()
    assert first.memory_used_bytes == 300, "an old driver has only the first version of the call"
    assert (first.temperature_celsius is None) == (call == "nvmlDeviceGetTemperature")
    assert second.temperature_celsius == 40


def test_the_largest_block_of_a_card_that_is_cut_up_is_its_emptiest_device(rig):
    rig.says(
        "driver loaded\ngpu GPU-a total=9 used=1 free=8 mig=3\n"
        "mig 0 total=4 used=1 free=3\nmig 0 total=5 used=0 free=5\n"
    )
    (card,) = rig.reader.read()
    assert card.free_block_bytes == 5


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetTemperature"])
def test_a_card_that_is_lost_midway_is_left_out_and_counted(rig, call):
    rig.says(f"{TWO}error {call} 0 {pynvml.NVML_ERROR_GPU_IS_LOST}\n")
    assert [card.uuid for card in rig.reader.read()] == ["GPU-b"]
    assert rig.reader.lost == 1
    rig.says(TWO)
    assert len(rig.reader.read()) == 2


def test_no_card_that_answers_is_no_reading_and_the_driver_is_opened_anew_later(rig):
    rig.says(f"{TWO}error nvmlDeviceGetHandleByIndex -1 {pynvml.NVML_ERROR_GPU_IS_LOST}\n")
    assert rig.reader.read() is None
    assert "none of 2 cards answers: GPU is lost" in rig.reader.why_not
    rig.says(TWO)
    assert rig.reader.read() is None, "not tried again at once"
    rig.clock.pass_(AGAIN_SECONDS)
    assert len(rig.reader.read()) == 2


def test_a_node_whose_driver_has_no_cards_has_none(rig):
    rig.says("driver loaded\n")
    assert rig.reader.read() == ()
    assert rig.reader.why_not is None


def test_a_uuid_that_is_no_text_takes_only_its_own_card(rig):
    rig.script.write_bytes(TWO.encode().replace(b"GPU-a", b"GPU-\xff"))
    assert [card.uuid for card in rig.reader.read()] == ["GPU-b"]


def test_as_the_read_of_a_source(rig):
    rig.says(TWO)
    cards = Source("gpu", rig.reader.read, 0.001, timeout_seconds=60.0, absent=lambda: rig.reader.why_not)
    cards.start()
    try:
        until(lambda: cards.latest() is not None)
        assert [card.uuid for card in cards.latest()] == ["GPU-a", "GPU-b"]
        rig.says("driver missing\n")
        until(lambda: cards.why_not)
        assert "Driver Not Loaded" in cards.why_not
    finally:
        assert cards.stop(10 * PATIENCE)


def until(condition):
    deadline = time.monotonic() + 10 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.001)


def test_a_driver_that_goes_away_and_comes_back(rig):
    rig.says(TWO)
    assert rig.reader.read() is not None
    rig.says("driver missing\n")
    assert rig.reader.read() is None
    assert "does not answer" in rig.reader.why_not
    rig.says(TWO)
    assert rig.reader.read() is None, "not tried again at once"
    rig.clock.pass_(AGAIN_SECONDS)
    assert len(rig.reader.read()) == 2


def test_a_driver_that_is_not_loaded_is_said_and_not_asked_for_again_and_again(rig):
    rig.says("driver missing\n")
    assert rig.reader.read() is None
    assert "no NVIDIA driver" in rig.reader.why_not
    rig.says(TWO)
    assert rig.reader.read() is None
    rig.clock.pass_(AGAIN_SECONDS)
    assert rig.reader.read() is not None


def test_a_node_without_the_library_has_no_cards(tmp_path):
    code = "import sys; from agent.host.nvml import NvmlReader; r = NvmlReader('/proc'); print(r.read(), r.why_not)"
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a real NVML")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("None no NVIDIA driver")


def test_a_node_without_the_binding_has_no_cards(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = NvmlReader("/proc")
    assert reader.read() is None
    assert "extra `gpu`" in reader.why_not


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"12:cpu,cpuacct:/kubepods/burstable/pod{UID_LS}/{CID}\n", UID_LS),
        (f"0::/kubepods.slice/kubepods-pod{UID_LS.replace('-', '_')}.slice/cri-containerd-{CID}.scope\n", UID_LS),
        (f"4:memory:/system.slice/containerd.service/kubepods-pod{UID_BE}:cri-containerd:{CID}\n", UID_BE),
        ("0::/user.slice/session-1.scope\n", None),
        ("nonsense\n\x00", None),
        ("", None),
    ],
)
def test_the_pod_of_a_process_is_in_its_cgroup_path_which_may_hold_colons(text, uid):
    # kernel.md 2.3: split at most twice, dragonfly #1502 aborted with "5 vs 3" fields.
    assert uid_in(text) == uid
