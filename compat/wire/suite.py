"""All wire tests against one broker: suite.py BOOTSTRAP [PART OF A NAME]..."""

import calls  # noqa: F401 (finds the harness)
import test_admin  # noqa: F401
import test_cluster  # noqa: F401
import test_consumer_groups  # noqa: F401
import test_codecs  # noqa: F401
import test_connection  # noqa: F401
import test_fetch  # noqa: F401
import test_groups  # noqa: F401
import test_limits  # noqa: F401
import test_produce  # noqa: F401
import test_settings  # noqa: F401
import test_shares  # noqa: F401
import test_quotas  # noqa: F401
import test_topics  # noqa: F401
import test_transactional_log  # noqa: F401
import test_transactional_offsets  # noqa: F401
import test_transactions  # noqa: F401
import test_values  # noqa: F401

from harness import main

main()
