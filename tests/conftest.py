"""Puts the benches that tests of several rooms share on the path: ``paperwork``, ``real_model``, ``tiny_engine``,
``tier_stubs``.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "agree"), str(HERE / "runtime")]
