"""What breaks outside the broker, done to the real process under a real client: suite.py duramen [PART OF A NAME]..."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / part) for part in ("", "wire", "kill9")]

import test_files  # noqa: F401
import test_full_disk  # noqa: F401
import test_pauses  # noqa: F401
import test_reads  # noqa: F401
import test_syncs  # noqa: F401
from harness import main

main()
