"""Hostile clients against the real process, with a good client beside them: suite.py duramen [PART OF A NAME]..."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / part) for part in ("", "wire")]

import test_bytes  # noqa: F401
import test_connections  # noqa: F401
import test_memory  # noqa: F401
import test_requests  # noqa: F401
from harness import main

main()
