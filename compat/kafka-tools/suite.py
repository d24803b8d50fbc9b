"""All tests of Kafka's command-line tools against one broker, or three that are one cluster: suite.py BOOTSTRAP [PART OF A NAME]..."""

import console  # noqa: F401 (finds the harness)
import test_cluster  # noqa: F401
import test_groups  # noqa: F401
import test_records  # noqa: F401
import test_share_groups  # noqa: F401
import test_topics  # noqa: F401
import test_transactions  # noqa: F401

from harness import main

main()
