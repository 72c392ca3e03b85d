"""Run settings that stand in words: ``TP2 implied``, ``batch 8192``, ``MTP n=3``, ``4 slots``. Never an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_COUNT: Final = r"([\d][\d,_]*)\s*([kK])?\b"

_PATTERNS: Final[dict[str, tuple[str, ...]]] = {
    "tp": (r"\bTP\s*[=:x]?\s*(\d+)", r"tensor[- _]parallel(?:ism)?(?:[- _]size)?\D{0,3}(\d+)"),
    "pp": (r"\bPP\s*[=:x]?\s*(\d+)", r"pipeline[- _]parallel(?:ism)?(?:[- _]size)?\D{0,3}(\d+)"),
    "cp": (r"\bD?CP\s*[=:x]?\s*(\d+)", r"context[- _]parallel(?:ism)?(?:[- _]size)?\D{0,3}(\d+)"),
    "batched_tokens": (
        rf"max[-_ ]num[-_ ]batched[-_ ]tokens\W{{0,3}}(?:of |went |from |was ){{0,2}}{_COUNT}",
        rf"\bbatch(?:ed)?(?: tokens| size| budget)?\W{{0,2}}{_COUNT}",
        rf"chunked[- _]prefill(?:[- _]size)?\W{{0,2}}{_COUNT}",
    ),
    "ubatch": (r"(?:u-?batch(?:[- _]size)?|-ub)\W{0,3}(\d+)", r"(\d+)\s*u-?batch", r"micro-?batch\w*\W{0,3}(\d+)"),
    "slots": (r"(\d+)\s*(?:server )?slots?\b", r"(?:n[-_ ]parallel|-np|n[-_ ]seq[-_ ]max)\W{0,3}(\d+)"),
    "sequences": (r"max[-_ ]num[-_ ]seqs\W{0,3}(\d+)", r"max[-_ ]running[-_ ]requests\W{0,3}(\d+)"),
    "block_tokens": (r"\bblock[-_ ]?size\W{0,3}(\d+)", r"\bblocks? of (\d+) tokens", r"\bblock (\d+)\b"),
    "page_tokens": (r"\bpage[-_ ]size\W{0,3}(\d+)",),
    "max_model_tokens": (
        rf"max[-_ ](?:model|seq)[-_ ]len(?:gth)?\W{{0,3}}{_COUNT}",
        rf"context[- _]length\W{{0,3}}{_COUNT}",
    ),
    "n_ctx": (rf"(?:n_ctx|--?ctx(?:-size)?|-c)\W{{1,3}}{_COUNT}",),
    "drafts": (
        r"\bMTP\W{0,3}n?\s*[=:]?\s*(\d+)\b",
        r"num[-_ ]spec(?:ulative)?[-_ ]tokens\W{0,3}(\d+)",
        r"\+\s*(\d+) spec\b",
        r"\bn\s*=\s*(\d+)\)?\s*(?:draft|spec)",
    ),
    "rollback": (r"(\d+)\s*rs_seq", r"rs_seq\W{0,3}(\d+)"),
    "swap_gib": (r"swap(?:[- _]space)?\W{0,3}(\d+)\s*Gi?B", r"(\d+)\s*GiB swap"),
    "mla_mode": (r"-?-mla\s*=?\s*(\d)",),
    "device": (r"\bdevice (\d+)\b", r"\b(?:CUDA|GPU|Vulkan|ROCm|SYCL)(\d)\b"),
    "state_slots": (r"(\d+)\s*slots", r"max_mamba_cache_size\W{0,3}(\d+)"),
}


@dataclass(frozen=True, slots=True)
class Words:
    """All that a case says in words. ``count`` reads a number, ``says`` asks for a phrase."""

    text: str

    def count(self, name: str) -> int | None:
        """The first number that follows a known wording of ``name``, or None."""
        for pattern in _PATTERNS[name]:
            found = re.search(pattern, self.text, re.IGNORECASE)
            if found:
                digits = re.sub(r"[,_]", "", found.group(1))
                thousands = 1024 if found.lastindex and found.lastindex > 1 and found.group(2) else 1
                return int(digits) * thousands
        return None

    def says(self, pattern: str) -> bool:
        """True when the words match."""
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    def memory_gib(self) -> float | None:
        """GiB of one device that stand in brackets (``(79.18 GiB)``): what the driver reports."""
        found = re.search(r"\(\s*(\d+(?:\.\d+)?)\s*GiB\s*\)", self.text)
        return float(found.group(1)) if found else None

    def label_gb(self) -> float | None:
        """GB on a device's label (``RTX 3090 24GB``), or of a device that is known by its name."""
        found = re.search(r"\b(\d{1,3})\s*G[Bi]", self.text)
        if found:
            return float(found.group(1))
        named = next((size for pattern, size in _DEVICES if self.says(pattern)), None)
        return named

    def devices(self) -> int | None:
        """``2x RTX 3090``, ``8 GPUs`` -> how many."""
        found = re.search(r"\b(\d+)\s*[x×]\s*[A-Za-z]", self.text) or re.search(r"\b(\d+)\s*GPUs?\b", self.text)
        return int(found.group(1)) if found else None


_DEVICES: Final = (
    (r"B300|GB300", 288.0),
    (r"\bB200|GB200", 180.0),
    (r"MI35\d", 288.0),
    (r"MI325", 256.0),
    (r"MI300", 192.0),
    (r"H200|GH200", 141.0),
    (r"H100|H800|H20\b", 80.0),
    (r"RTX (?:PRO )?6000 Blackwell|PRO 6000|Thor|GB10|Spark", 96.0),
)
"""Memory in GB of devices of 70 GB and more that people name without it (makers' data sheets)."""
