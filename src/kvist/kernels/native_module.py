"""Loads ``kvist_native``, or says in one sentence why it is absent and what to do.

The environment variable ``KVIST_ISA`` (portable, avx2, avx512) forces an instruction set; otherwise the best one that
this processor runs is used.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType

import torch  # noqa: F401  (first: the native module then shares its OpenMP runtime and its pool of threads)

from kvist.errors import BadValue

REMEDY = "install g++ 10 or newer (Debian: apt-get install g++), then reinstall kvist"


def absent_reason() -> str | None:
    """One sentence, or None when the native kernels are there."""
    try:
        import kvist.kernels.kvist_native  # noqa: F401
    except ModuleNotFoundError:
        return f"kvist was installed without its native kernels: {REMEDY}"
    except ImportError as error:
        return f"the native kernels do not load ({error}): {REMEDY}"
    return None


@cache
def load() -> ModuleType:
    """The module, with its instruction set chosen. Raises ``ImportError`` (absent) or ``BadValue`` (KVIST_ISA)."""
    reason = absent_reason()
    if reason:
        raise ImportError(reason)
    from kvist.kernels import kvist_native

    wanted = os.environ.get("KVIST_ISA")
    if wanted:
        if wanted not in kvist_native.available():
            raise BadValue("KVIST_ISA", wanted, f"one of {', '.join(kvist_native.available())} on this machine")
        kvist_native.choose(wanted)
    return kvist_native
