"""The HTTP surface of the native API keeps to its own document: Schemathesis asks what the document allows, and what it does not.

NATIVE names its port.
"""

import os
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import (
    allow_header_conformance,
    not_a_server_error,
    unsupported_method,
)
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import checks

pytestmark = pytest.mark.timeout(240 * checks.SLOWNESS)
# Each operation's examples, beside those that cover the bounds of each parameter.
EXAMPLES = 25
PROTOBUF = "application/x-protobuf"
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection, unsupported_method, allow_header_conformance,
]  # fmt: skip
# A wait is a wait: no example takes longer.
WAITS = ["0s", "1ms", "50ms"]


@schemathesis.serializer(PROTOBUF)
def as_it_is(_, value):
    return value if isinstance(value, bytes) else str(value).encode()


schema = schemathesis.openapi.from_url(f"http://{os.environ['NATIVE']}/openapi.json")


@schema.parametrize()
@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_keeps_to_its_document(case):
    if isinstance(case.query, dict) and re.fullmatch(r"\d+(s|ms)", str(case.query.get("wait", ""))):
        case.query["wait"] = WAITS[len(str(case.query["wait"])) % len(WAITS)]
    case.call_and_validate(checks=CHECKS, timeout=30)
