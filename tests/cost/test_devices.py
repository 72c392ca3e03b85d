"""The hardware catalogue: complete, plausible, right where it can be computed, and found by any sensible name."""

import dataclasses
import importlib.util
import json
import re
import time
import tomllib
from pathlib import Path

import pytest

from kvist.cost import catalogue
from kvist.cost.catalogue import KINDS, device, devices, known_devices
from kvist.cost.device import RATES
from kvist.errors import BadValue
from kvist.units import GIB

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src" / "kvist" / "cost" / "devices.toml"
CASES = ROOT.parent / "shared" / "cases" / "capacity_cases.jsonl"

every = pytest.mark.parametrize("known", devices(), ids=lambda known: known.name)

ACCELERATORS = (
    "T4", "V100 32GB", "A10", "A10G", "A16", "A30", "A40", "A100 40GB PCIe", "A100 40GB SXM", "A100 80GB PCIe",
    "A100 80GB SXM", "L4", "L40", "L40S", "RTX 3090", "RTX 4090", "RTX 5090", "RTX 6000 Ada", "RTX PRO 6000 Blackwell",
    "H100 PCIe", "H100 SXM", "H100 NVL", "H200", "H20", "GH200", "B200", "B300", "GB200", "GB300", "DGX Spark",
    "Jetson AGX Orin", "Jetson AGX Thor", "MI210", "MI250X", "MI250X GCD", "MI300A", "MI300X", "MI325X", "MI350X",
    "MI355X", "RX 7900 XTX", "Ryzen AI Max+ 395", "Gaudi 2", "Gaudi 3", "Arc A770", "Arc Pro B60", "Arc Pro B70",
    "Max 1550", "TPU v5e", "TPU v5p", "TPU v6e", "Inferentia2", "Trainium2", "Ascend 910B2", "Ascend 910B3",
    "Ascend 910B4", "Ascend 910C", "M1 Max", "M1 Ultra", "M2 Ultra", "M3 Max", "M3 Ultra", "M4", "M4 Pro", "M4 Max",
    "M5",
)  # fmt: skip
CPUS = (
    "EPYC 7763", "EPYC 9654", "EPYC 9755", "Xeon 8380", "Xeon 8480+", "Xeon 6980P", "Graviton3", "Graviton4",
    "Ryzen 9 7950X", "Ryzen 9 9950X", "Core i9-14900K", "Core Ultra 7 155H", "Raspberry Pi 5",
)  # fmt: skip


def test_the_devices_people_ask_about_are_there():
    assert len(devices()) >= 45
    found = {device(name).name for name in ACCELERATORS}
    assert len(found) == len(ACCELERATORS)
    assert all(device(name).kind != "cpu" for name in ACCELERATORS)
    assert all(device(name).kind == "cpu" for name in CPUS)
    assert {known.kind for known in devices()} == set(KINDS)


def test_the_file_says_nothing_the_reader_drops():
    table = tomllib.loads(FILE.read_text())
    assert set(table) == {"accessed", "sources", *KINDS}
    fields = {
        "name", "maker", "year", "memory_gib", "usable_gib", "bandwidth_gb_s", "tflops", "link", "link_gb_s",
        "host_gb_s", "aliases", "sources", "notes",
    }  # fmt: skip
    rows = [row for kind in KINDS for row in table[kind]]
    for row in rows:
        assert set(row) <= fields, row["name"]
    keys = [key for group in table["sources"].values() for key in group]
    assert len(keys) == len(set(keys)), "a source stands in both groups"
    assert set(keys) == {key for row in rows for key in row["sources"]}


@every
def test_an_entry_is_complete(known):
    assert known.name and known.maker
    assert known.memory_bytes > 0 and known.usable_bytes >= 0
    assert known.flops and set(known.flops) <= set(RATES)
    assert 2018 <= known.year <= 2026
    assert known.sources
    for source in known.sources:
        assert re.fullmatch(r"https://\S+ (\(.*\) )?\((read|named) 2026-11\)", source)
    assert bool(known.link) == bool(known.link_bytes_per_s)
    if known.kind in ("gpu", "npu"):
        assert known.link, "how do several of them talk?"
        assert known.host_bytes_per_s or "host" in known.notes, "a missing link to the host is explained"


@every
def test_an_entry_is_plausible(known):
    assert 8e9 <= known.memory_bytes <= 2e12
    assert 0.7 * known.memory_bytes <= (known.usable_bytes or known.memory_bytes) <= known.memory_bytes
    assert known.capacity_bytes == (known.usable_bytes or known.memory_bytes)
    assert 15e9 <= known.bandwidth_bytes_per_s <= 1e13
    if known.kind != "cpu":
        assert known.bandwidth_bytes_per_s >= 100e9
    assert known.link_bytes_per_s < known.bandwidth_bytes_per_s
    assert known.host_bytes_per_s < known.bandwidth_bytes_per_s
    intensity = known.flops_for("bf16") / known.bandwidth_bytes_per_s
    assert 1 < intensity < 2000
    assert known.memory_bytes / known.bandwidth_bytes_per_s < 10, "seconds to read the memory once"


@every
def test_narrower_numbers_are_not_slower(known):
    """Floats: f32 to fp4. Integers: int8 to int4, and int8 against 16 bits, except where int8 was cut away."""
    for order in (("f32", "tf32", "bf16", "fp8", "fp4"), ("f32", "f16", "fp8"), ("int8", "int4")):
        rates = [known.flops[name] for name in order if name in known.flops]
        assert rates == sorted(rates), order
    if "f16" in known.flops and "bf16" in known.flops and known.kind != "cpu":
        assert known.flops["f16"] == known.flops["bf16"]
    if "int8" in known.flops and "int8 is slow" not in known.notes and known.maker != "NVIDIA":
        assert known.flops["int8"] >= known.flops_for("bf16")


STEEPER = {"B300": 3.2, "GB300": 3.1, "RTX 5090": 4.1, "Trainium3": 3.8}
"""Devices whose makers widened one narrow format beyond a doubling."""


@every
def test_rates_are_dense(known):
    """Half the width doubles the rate of a matrix unit; a ratio beyond that would be a sparse figure beside a dense."""
    ladder = [known.flops[name] for name in ("bf16", "fp8", "fp4") if name in known.flops]
    for wide, narrow in zip(ladder, ladder[1:], strict=False):
        assert narrow <= STEEPER.get(known.name, 2.1) * wide


def test_a_cpus_figures_are_its_notes_arithmetic():
    """Channels x transfers x 8 bytes; cores x clock x operations per cycle."""
    checked = 0
    for known in devices():
        if known.kind != "cpu":
            continue
        if memory := re.search(r"(\d+) channels x (\d+) MT/s x 8 B", known.notes):
            assert known.bandwidth_bytes_per_s == pytest.approx(int(memory[1]) * int(memory[2]) * 1e6 * 8)
        elif memory := re.search(r"(\d+) bits x (\d+) MT/s", known.notes):
            assert known.bandwidth_bytes_per_s == pytest.approx(int(memory[1]) / 8 * int(memory[2]) * 1e6)
        clusters = re.findall(r"(\d+)(?: cores)? x ([\d.]+)(?: GHz)? x (\d+)\b(?! MT)", known.notes)
        assert memory and clusters, known.name
        f32 = sum(int(n) * float(ghz) * 1e9 * int(ops) for n, ghz, ops in clusters)
        assert known.flops["f32"] == pytest.approx(f32), known.name
        n, ghz, _ = clusters[0]
        for names, ops in re.findall(r"(bf16|f16|16 bits|int8) x (\d+)", known.notes):
            for name in ("f16", "bf16") if names == "16 bits" else (names,):
                assert known.flops[name] == pytest.approx(int(n) * float(ghz) * 1e9 * int(ops)), (known.name, name)
                checked += 1
        if "int8 four times" in known.notes:
            assert known.flops["int8"] == pytest.approx(4 * f32)
    assert checked > 15


def test_figures_computed_by_hand():
    # 132 SMs x 4 tensor cores x 512 multiply-adds x 2 x 1.83 GHz, within the clock's rounding
    assert device("H100 SXM").flops["bf16"] == pytest.approx(132 * 4 * 512 * 2 * 1.83e9, rel=1e-3)
    assert device("A100 80GB SXM").flops["f16"] == pytest.approx(108 * 4 * 256 * 2 * 1.41e9, rel=1e-3)
    assert device("MI300X").flops["fp8"] == pytest.approx(304 * 4096 * 2.1e9, rel=1e-3)
    assert device("MI355X").flops["fp4"] == pytest.approx(256 * 16384 * 2.4e9, rel=1e-3)
    assert device("MI250X GCD").flops["f16"] * 2 == device("MI250X").flops["f16"]
    assert device("Ascend 910B2").flops["f16"] == pytest.approx(24 * 16**3 * 2 * 1.8e9, rel=1e-3)
    assert device("Gaudi 3").flops["bf16"] == pytest.approx(8 * 256 * 256 * 2 * 1.75e9, rel=1e-3)
    # bus width in bits / 8 x transfers per second
    assert device("T4").bandwidth_bytes_per_s == 256 / 8 * 10e9
    assert device("RTX 4090").bandwidth_bytes_per_s == 384 / 8 * 21e9
    assert device("RTX 5090").bandwidth_bytes_per_s == 512 / 8 * 28e9
    assert device("B200").bandwidth_bytes_per_s == pytest.approx(7680 / 8 * 2 * 3.996e9, rel=5e-3)
    # printed for both directions
    assert device("H100").link_bytes_per_s == 900e9 / 2
    assert device("B200").link_bytes_per_s == 1.8e12 / 2
    assert device("MI300X").link_bytes_per_s == 7 * 128e9 / 2
    assert device("H100").host_bytes_per_s == 128e9 / 2


def test_units():
    h100 = device("H100")
    assert h100.memory_bytes == 80 * GIB == 85_899_345_920
    assert h100.usable_bytes == round(79.18 * GIB)
    assert h100.bandwidth_bytes_per_s == 3.352e12
    assert h100.flops["fp8"] == pytest.approx(1978.9e12)
    assert isinstance(h100.memory_bytes, int) and isinstance(h100.usable_bytes, int)
    with pytest.raises(dataclasses.FrozenInstanceError):
        h100.year = 1


def test_names_are_unambiguous():
    """No two devices answer to one normalised name, and no alias repeats its own device's name."""
    owner = {}
    for known in devices():
        keys = [catalogue._normal(text) for text in (known.name, *known.aliases)]
        assert all(keys)
        assert len(keys) == len(set(keys)), f"{known.name}: an alias says the same twice"
        for key in keys:
            assert owner.setdefault(key, known.name) == known.name
    assert known_devices() == tuple(known.name for known in devices())
    assert all(device(name).name == name for name in known_devices())


@pytest.mark.parametrize(
    "said,meant",
    [
        ("H100", "H100 SXM"), ("h100-sxm", "H100 SXM"), ("H100 SXM 80GB", "H100 SXM"), ("rtx4090", "RTX 4090"),
        ("M3 Max", "M3 Max"), ("Apple M3 Max", "M3 Max"), ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("mi300x", "MI300X"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"), ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("Tesla V100-SXM2-32GB", "V100 SXM 32GB"), ("NVIDIA GeForce RTX 3090", "RTX 3090"), ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"), ("Intel(R) Xeon(R) Platinum 8480+", "Xeon Platinum 8480+"),
        ("gb10", "DGX Spark"), ("ascend_910c", "Ascend 910C"), ("tpu-v5e", "TPU v5e"), ("pi5", "Raspberry Pi 5"),
    ],
)  # fmt: skip
def test_a_device_is_found_however_it_is_written(said, meant):
    assert device(said).name == meant
    assert device(said.upper()).name == meant
    assert device(said.replace("-", " ")).name == meant


@pytest.mark.parametrize(
    "said,near",
    [
        ("H300", "H200"),
        ("RTX 4095", "RTX 4090"),
        ("MI305X", "MI300X"),
        ("gaudi 4", "Gaudi 3"),
        ("A100 60GB SXM", "A100"),
    ],
)
def test_an_unknown_name_is_refused_naming_the_nearest(said, near):
    with pytest.raises(BadValue) as error:
        device(said)
    assert error.value.name == "device" and error.value.value == said
    assert f"one of the {len(devices())} known devices" in error.value.what
    assert near in error.value.remedy
    assert error.value.remedy.count(",") == 2, "the three nearest"


@pytest.mark.parametrize(
    "said,fits", [("A100", 4), ("Ascend 910B", 3), ("m3", 2), ("xeon", 3), ("MI300", 2), ("RTX", 6)]
)
def test_an_ambiguous_name_is_refused_naming_those_it_fits(said, fits):
    with pytest.raises(BadValue, match=rf"it fits {fits}\)") as error:
        device(said)
    assert error.value.remedy.count(",") == fits - 1


@pytest.mark.parametrize("said", ["", "  ", "NVIDIA", "banana"])
def test_nonsense_is_refused(said):
    with pytest.raises(BadValue, match="name one of"):
        device(said)


def test_a_long_list_is_cut_and_says_so():
    assert catalogue._either(tuple("abcdefghij")) == "name one of: a, b, c, d, e, f, g, h and 2 more"


def printed_totals():
    """(device as the log names it, total GiB it prints) of every shared case that has one."""
    if not CASES.is_file():
        pytest.skip(f"no shared cases at {CASES}")
    found = []
    for line in CASES.read_text().splitlines():
        case = json.loads(line)
        hardware = case.get("hardware") or ""
        name = re.sub(r"\(.*\)", "", hardware).strip()
        in_brackets = re.search(r"\(([\d.]+) GiB\)", hardware)
        total = case.get("reported", {}).get("total_gib") or (in_brackets and float(in_brackets[1]))
        if total:
            found.append((name, total))
    return found


def test_usable_figures_are_those_the_logs_print():
    """To the second digit; where logs differ (driver versions), one of them, and within 0.05 GiB of each."""
    totals = {}
    for name, total in printed_totals():
        totals.setdefault(device(name).name, set()).add(total)
    assert {"H100 SXM", "T4", "RTX 4090", "A100 40GB SXM", "L4"} <= set(totals)
    for name, printed in totals.items():
        usable = device(name).usable_bytes / GIB
        assert any(usable == pytest.approx(total, abs=5e-4) for total in printed), name
        assert all(abs(usable - total) <= 0.05 for total in printed), name


def test_a_usable_figure_has_its_origin():
    """A source that prints it, or a note that says where it comes from."""
    logs = re.compile("unsloth|llm-d|vllm|aiconfigurator|pytorch/ao|issues/|legacy-rocm")
    for known in devices():
        if known.usable_bytes:
            assert "sable" in known.notes or any(logs.search(source) for source in known.sources), known.name


def test_what_is_not_official_says_so():
    for known in devices():
        assert ("Not official" in known.notes) == (known.maker == "Huawei")


def test_a_missing_rate_falls_back_to_a_wider_format():
    t4 = device("T4")
    assert t4.flops_for("bf16") == t4.flops["f16"]
    assert device("TPU v5e").flops_for("f16") == 197e12
    assert device("EPYC 7763").flops_for("int8") == device("EPYC 7763").flops["f32"]


def test_read_once_and_fast():
    assert devices() is devices()
    fastest_s = min(_load_s() for _ in range(7))
    assert fastest_s < 0.015


def _load_s():
    begin_s = time.perf_counter()
    catalogue.devices.__wrapped__()
    return time.perf_counter() - begin_s


def test_the_page_shows_every_device_as_it_is():
    spec = importlib.util.spec_from_file_location("devices_table", ROOT / "docs" / "devices_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = module.devices_table()
    assert all(f"| {name} |" in table and f"**{name}**" in table for name in known_devices())
    page = (ROOT / "docs" / "devices.md").read_text()
    shown = page.split("<!-- generated: devices -->\n")[1].split("\n<!-- end -->")[0]
    assert shown == table
