"""What the Python suites tell pytest: only tests that wait run beside others, each in a process of its own."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("waits") is None:
            item.add_marker(pytest.mark.xdist_group("one after the other"))
