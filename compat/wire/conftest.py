"""Compares what each test was answered with Apache Kafka's answers, when its own assertions hold."""

import pytest

import golden


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    golden.recorder.begin()
    try:
        yield
    finally:
        golden.recorder.on = False
    # A test that has failed or was skipped has left by the line above.
    wrong = golden.judge(item.path.stem, item.name)
    if wrong:
        pytest.fail(wrong, pytrace=False)


def pytest_sessionfinish():
    golden.write()
