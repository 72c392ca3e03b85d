"""Puts this folder on the path, so that tests of several rooms share one bench (``paperwork``)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
