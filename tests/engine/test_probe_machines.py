"""The probe on computers that this one is not: what it finds, and the sentence with its evidence where a card cannot be used."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.hardware.machine import Gpu, GpuKind, Holder, Machine, PcieLink
from engine.hardware.probe import probe_all
from engine.probe_cli import rows
from engine.protocol import MachineFacts, decode, encode
from tests.engine.machines import NAMES, computer

GIB = 1 << 30
CUDA = {"version": "2.13.0+cu130", "cuda": "13.0"}


def _look(name: str, folder: Path, **changes: Any) -> Machine:
    return probe_all([], computer(name, folder, **changes))


def _troubles(machine: Machine) -> list[str]:
    return [gpu.trouble for gpu in machine.gpus]


def test_laptop(tmp_path: Path) -> None:
    machine = _look("laptop", tmp_path)
    card, shared = machine.gpus
    assert machine.cpu.physical_cores == 14
    assert (machine.cpu.performance_cores, machine.cpu.efficiency_cores, machine.cpu.logical_cores) == (6, 8, 20)
    assert machine.cpu.isa == ("portable", "avx2")
    assert card.is_usable
    assert (card.name, card.vram_free, card.compute_capability) == ("NVIDIA GeForce RTX 4060 Laptop GPU", 7700000000, (8, 9))
    assert card.pcie == PcieLink(1, 8, 4, 8)  # a sleeping link, of a card that never has more than eight lanes
    assert card.vram_holders == (Holder("program 4100", 300000000, 4100), Holder("program 1200", 180000000, 1200))
    assert (shared.kind, shared.name) == (GpuKind.INTEL, "Intel Raptor Lake-P [Iris Xe Graphics]")
    assert shared.is_integrated
    assert not shared.is_usable
    assert (machine.pinnable, machine.notices) == (8 * GIB, ())


def test_two_cards_are_matched_whatever_order_cuda_gives_them(tmp_path: Path) -> None:
    machine = _look("two_cards", tmp_path)
    assert [(gpu.name, gpu.is_usable) for gpu in machine.gpus] == [
        ("NVIDIA GeForce RTX 3060", True),
        ("NVIDIA GeForce RTX 5070 Ti", True),
    ]
    assert machine.gpus[1].pcie == PcieLink(3, 4, 5, 16)  # in a slot of the chipset


def test_two_cards_of_which_a_variable_hides_one(tmp_path: Path) -> None:
    seen = {"devices": [{"uuid": "bbbbbbbb-0000-0000-0000-000000000002", "total": 5, "free": 5, "fault": ""}], "fault": ""}
    machine = _look("two_cards", tmp_path, environ={"CUDA_VISIBLE_DEVICES": "0"}, torch=seen)
    hidden, shown = machine.gpus
    assert shown.is_usable
    assert "CUDA_VISIBLE_DEVICES=0" in hidden.trouble


@pytest.mark.parametrize(
    ("value", "words"),
    [("", "the empty CUDA_VISIBLE_DEVICES"), ("-1", "CUDA_VISIBLE_DEVICES=-1"), ('"0"', "quotation marks")],
)
def test_a_variable_that_hides_every_card_is_named(tmp_path: Path, value: str, words: str) -> None:
    nothing = {"devices": [], "fault": "No CUDA GPUs are available"}
    machine = _look("two_cards", tmp_path, environ={"CUDA_VISIBLE_DEVICES": value}, torch=nothing)
    assert all(words in trouble for trouble in _troubles(machine))


def test_amd_card_beside_an_integrated_one(tmp_path: Path) -> None:
    machine = _look("amd", tmp_path)
    card, shared = machine.gpus
    assert card.is_usable
    assert (card.name, card.vram_total, card.vram_free) == ("Radeon RX 7900 XTX", 25753026560, 24000000000)
    assert (card.is_integrated, shared.is_integrated, shared.vram_total) == (False, True, None)


def test_amd_card_with_the_wrong_build_of_torch(tmp_path: Path) -> None:
    machine = _look("amd", tmp_path, torch_build={"version": "2.13.0+cpu"}, torch={"ended": "must not be asked"})
    assert machine.gpus[0].trouble == (
        "torch 2.13.0+cpu was built without ROCm, so it stays unused: python3 installers/start.py --torch rocm"
    )


def test_nvidia_card_with_the_wrong_build_of_torch(tmp_path: Path) -> None:
    machine = _look("laptop", tmp_path, torch_build={"version": "2.13.0+cpu"}, torch={"ended": "must not be asked"})
    assert "--torch cuda" in machine.gpus[0].trouble
    assert machine.gpus[0].vram_free == 7700000000


def test_no_card(tmp_path: Path) -> None:
    machine = _look("no_card", tmp_path)
    assert machine.gpus == ()
    assert machine.commit_left == 7 * GIB
    assert machine.ram_available == 7 * GIB  # 12 are free, and no more may be promised
    (notice,) = machine.notices
    assert "/sys/bus/pci/devices" in notice
    assert machine.pinnable is None
    assert "8388608" in machine.pinnable_note


def test_wsl_with_its_limit_on_registered_memory(tmp_path: Path) -> None:
    machine = _look("wsl", tmp_path)
    (card,) = machine.gpus
    assert (machine.system, card.is_usable, machine.pinnable) == ("WSL", True, 768 << 20)
    assert "refused" in machine.pinnable_note


def test_wsl_where_copies_do_nothing(tmp_path: Path) -> None:
    found = json.loads((Path(__file__).parent / "machines/wsl.json").read_text())["torch"]
    machine = _look("wsl", tmp_path, torch=found | {"pin": {"bytes": GIB, "stop": "limit", "is_right": False}})
    assert machine.pinnable == 0


def test_container(tmp_path: Path) -> None:
    machine = _look("container", tmp_path)
    assert (machine.ram_limit, machine.is_capped) == (4 * GIB, True)
    assert machine.ram_available == 3 * GIB + GIB // 4
    assert (machine.cpu.quota, machine.cpu.physical_cores, machine.cpu.numa_nodes) == (1.5, 16, 2)
    (card,) = machine.gpus
    assert "container" in card.trouble
    assert "/dev/nvidiactl" in card.trouble
    assert "570.124.06" in card.trouble
    assert "--gpus all" in card.trouble


def test_apple(tmp_path: Path) -> None:
    machine = _look("apple", tmp_path)
    assert machine.has_unified_memory
    assert (machine.cpu.performance_cores, machine.cpu.efficiency_cores, machine.cpu.isa[-1]) == (6, 6, "neon")
    (gpu,) = machine.gpus
    assert (gpu.name, gpu.is_integrated, gpu.vram_total, gpu.trouble) == ("Apple M3 Pro", True, None, "")


def test_half_broken_nvml_costs_only_what_it_does_not_tell(tmp_path: Path) -> None:
    machine = _look("half_broken_nvml", tmp_path)
    gone, half, zero, lying, lost, unheard, sixth = machine.gpus
    assert "GPU is lost" in gone.trouble
    assert half.is_usable
    assert (half.vram_free, half.compute_capability, half.pcie) == (25000000000, None, PcieLink(None, 16, 4, None))
    for gpu in (zero, lying):
        assert "does not tell its memory" in gpu.trouble
        assert (gpu.vram_total, gpu.vram_free) == (None, None)
    assert "lost the card" in lost.trouble
    assert {unheard.address, sixth.address} == {"0000:01:00.0", "0000:06:00.0"}
    assert "/sys/bus/pci/devices/0000:06:00.0" in sixth.trouble


NO_DRIVER = {"init": {"error": "LibraryNotFound"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nvml": {"init": {"error": "DriverNotLoaded"}}}, ["not loaded", "Driver Not Loaded"]),
        ({"nvml": {"init": {"error": "LibRmVersionMismatch"}}}, ["was updated", "restart"]),
        ({"nvml": {"init": {"error": "NoPermission"}}}, ["permissions of /dev/nvidiactl"]),
        ({"nvml": NO_DRIVER}, ["580.95.05 is loaded", "library is not installed"]),
        ({"nvml": {"ended": "gave no answer in 10 s and was ended"}}, ["gave no answer in 10 s"]),
        ({"nvml": {"ended": "crashed (SIGSEGV)"}}, ["crashed (SIGSEGV)"]),
    ],
)
def test_each_way_in_which_nvml_fails_has_its_sentence(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    card = _look("laptop", tmp_path, torch={"ended": "must not be asked"}, **changes).gpus[0]
    assert all(word in card.trouble for word in words), card.trouble
    assert card.name == "NVIDIA AD107M [GeForce RTX 4060 Max-Q / Mobile]"


def test_a_card_without_nvidias_driver(tmp_path: Path) -> None:
    pci = [{"address": "0000:01:00.0", "vendor": "0x10de", "device": "0x2684", "class": "0x030000", "driver": "nouveau"}]
    (card,) = _look("no_card", tmp_path, pci=pci, nvml=NO_DRIVER).gpus
    assert "nouveau runs it" in card.trouble
    assert "/sys/bus/pci/devices/0000:01:00.0/driver" in card.trouble
    assert card.name == "NVIDIA graphics 10de:2684"


def test_an_old_driver_is_told_with_both_versions(tmp_path: Path) -> None:
    found = json.loads((Path(__file__).parent / "machines/two_cards.json").read_text())["nvml"]
    machine = _look("two_cards", tmp_path, nvml=found | {"driver": "550.163.01", "cuda": 12040})
    for trouble in _troubles(machine):
        assert all(word in trouble for word in ("550.163.01", "CUDA 12.4", "CUDA 13.0", "580 or newer"))


def test_wsl_without_a_card_and_without_a_library(tmp_path: Path) -> None:
    machine = _look("wsl", tmp_path / "a", nvml=NO_DRIVER)
    assert machine.gpus == ()
    assert "/dev/dxg" in machine.notices[0]
    assert "driver in Windows" in machine.notices[0]
    computer("wsl", tmp_path / "b")
    (tmp_path / "b/dev/dxg").unlink()
    files = {"/proc/version": "Linux version 6.6.87.2-microsoft-standard-WSL2"}
    meminfo = {"/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB"}
    (notice,) = _look("wsl", tmp_path / "c", files=files | meminfo, pci=[]).notices
    assert "/dev/dxg is absent" in notice


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ({"ended": "gave no answer in 60 s and was ended"}, "gave no answer in 60 s"),
        ({"ended": "crashed (SIGABRT)"}, "crashed (SIGABRT)"),
        ({"devices": [], "fault": "CUDA unknown error"}, "CUDA unknown error"),
    ],
)
def test_a_card_that_torch_cannot_reach_is_not_usable(tmp_path: Path, torch: dict[str, Any], words: str) -> None:
    machine = _look("laptop", tmp_path, torch=torch)
    assert words in machine.gpus[0].trouble
    assert machine.gpus[1].trouble == ""  # nobody asked torch for the screen's own


def test_a_card_for_which_the_build_has_no_kernels(tmp_path: Path) -> None:
    device = {"address": "0000:01:00.0", "fault": "CUDA error: no kernel image is available", "total": 1, "free": 1}
    machine = _look("laptop", tmp_path, torch={"devices": [device], "fault": ""})
    assert "compute capability 8.9: CUDA error: no kernel image" in machine.gpus[0].trouble


@pytest.mark.parametrize("name", NAMES)
def test_every_computer_can_be_shown_and_sent(tmp_path: Path, name: str) -> None:
    machine = _look(name, tmp_path)
    message = MachineFacts(7, machine)
    assert decode(encode(message)) == message
    text = "\n".join(f"{label} {line}" for label, line in rows(machine))
    assert "None" not in text
    assert all(gpu.name in text and gpu.trouble in text for gpu in machine.gpus)
    assert not any("must not be asked" in str(asdict(gpu)) for gpu in machine.gpus)


def test_integrated_and_troubled_devices_are_never_usable() -> None:
    assert not Gpu("a", GpuKind.AMD, vram_total=5, vram_free=5, is_integrated=True).is_usable
    assert not Gpu("a", GpuKind.AMD, vram_total=5, vram_free=5, trouble="gone").is_usable
    assert not Gpu("a", GpuKind.AMD).is_usable
