"""kafka-python (pure Python, its own protocol code) against one broker: suite.py BOOTSTRAP [PART OF A NAME]..."""

import client  # noqa: F401 (finds the harness)
import test_groups  # noqa: F401
import test_log  # noqa: F401
import test_transactions  # noqa: F401

from harness import main

main()
