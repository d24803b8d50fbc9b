"""librdkafka's own tests of security, each by a listener that it wants. What is asserted of Duramen is asserted of Kafka."""

import re

import pytest

from checks import broker_kind
from conftest import PASSWORD, USER
from listeners import addresses

# Parts of tests that leave themselves out, by a part of the reason that they give.
LEFT_OUT = {
    "0142_reauthentication": {"`sasl.mechanism=OAUTHBEARER` is required"},
}
# Parts of 0081, each run alone: the first one that fails would end them all.
ADMIN = [
    "do_test_CreateTopics:", "do_test_DeleteTopics:", "do_test_CreatePartitions:", "do_test_CreateAcls:", "do_test_DescribeAcls:",
    "do_test_DeleteAcls:", "do_test_AlterConfigs:", "do_test_IncrementalAlterConfigs:", "do_test_DescribeConfigs:",
    "do_test_DescribeConfigs_groups:", "DeleteRecords with temp queue", "DeleteRecords with main queue", "do_test_ListConsumerGroups:",
    "do_test_DescribeConsumerGroups:", "do_test_DescribeConsumerGroups_with_authorized_ops:", "do_test_DescribeTopics:",
    "do_test_DescribeCluster:", "do_test_DeleteGroups:", "do_test_DeleteConsumerGroupOffsets:", "do_test_ListOffsets:",
    "do_test_AlterConsumerGroupOffsets:", "do_test_ListConsumerGroupOffsets:", "do_test_UserScramCredentials:",
]  # fmt: skip
# Parts that Duramen fails, with what they say then, and the reason.
NOT_AS_KAFKA = {
    "do_test_AlterConfigs:": ("sasl.kerberos.min.time.before.relogin: there is no such setting", "Kerberos is not supported"),
    "do_test_IncrementalAlterConfigs:": ("sasl.kerberos.min.time.before.relogin: there is no such setting", "Kerberos is not supported"),
}
LOCAL = ["0080_admin_ut", "0097_ssl_verify_local", "0128_sasl_callback_queue", "0133_ssl_keys", "0134_ssl_provider"]


def by_password(cluster, certificates, mechanism="SCRAM-SHA-512"):
    return {
        "bootstrap.servers": addresses(cluster, "SASL_SSL"), "security.protocol": "sasl_ssl", "ssl.ca.location": certificates.ca,
        "sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD,
    }


def check_what_was_left_out(test, said):
    reasons = set(re.findall(r": SKIP: (.*?)\s*\]", said))
    expected = LEFT_OUT.get(test, set())
    assert all(any(it in reason for it in expected) for reason in reasons), reasons


@pytest.mark.waits
@pytest.mark.parametrize("test", LOCAL)
def test_what_needs_no_broker(upstream, cluster, certificates, test):
    check_what_was_left_out(test, upstream(test, by_password(cluster, certificates)))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_credentials_that_change(upstream, cluster, certificates, mechanism):
    check_what_was_left_out("0135", upstream("0135_sasl_credentials", by_password(cluster, certificates, mechanism)))


@pytest.mark.waits
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_clients_that_show_again_who_they_are(upstream, cluster, certificates, mechanism):
    test = "0142_reauthentication"
    check_what_was_left_out(test, upstream(test, by_password(cluster, certificates, mechanism)))


@pytest.mark.waits
@pytest.mark.timeout(300)
@pytest.mark.parametrize("listener", ["REQUIRED", "REQUESTED"])
def test_certificates_of_clients_in_each_form(upstream, cluster, certificates, listener):
    properties = {"bootstrap.servers": addresses(cluster, listener), "security.protocol": "ssl", **certificates.properties()}
    upstream("0097_ssl_verify", properties, {**certificates.environment(), "SSL_client_auth": listener.lower()})


@pytest.mark.waits
@pytest.mark.timeout(300)
def test_tokens_of_a_provider(upstream, cluster, provider):
    properties = {
        "bootstrap.servers": addresses(cluster, "TOKENS"), "security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "OIDC", "sasl.oauthbearer.client.id": "123", "sasl.oauthbearer.client.secret": "abc",
        "sasl.oauthbearer.scope": "test", "sasl.oauthbearer.token.endpoint.url": f"{provider.at}/retrieve",
        "sasl.oauthbearer.extensions": "ExtensionworkloadIdentity=develC348S,Extensioncluster=lkc123",
    }
    check_what_was_left_out("0126", upstream("0126_oauthbearer_oidc", properties, provider.environment()))


@pytest.mark.parametrize("test", ["0109_auto_create_topics", "0115_producer_auth", "0119_consumer_auth"])
def test_what_rules_forbid(upstream, guarded, tools, test):
    upstream(test, {"bootstrap.servers": guarded.bootstrap}, {"KAFKA_PATH": str(tools)})


@pytest.mark.parametrize("part", ADMIN)
def test_administration(upstream, guarded, tools, part):
    environment = {"KAFKA_PATH": str(tools)}
    if broker_kind() == "duramen" and part in NOT_AS_KAFKA:
        sign, reason = NOT_AS_KAFKA[part]
        with pytest.raises(AssertionError, match="FAILED") as failure:
            upstream("0081_admin", {"bootstrap.servers": guarded.bootstrap}, environment, part)
        assert sign in failure.value.said, "it fails for another reason than it did"
        pytest.skip(reason)
    assert part in upstream("0081_admin", {"bootstrap.servers": guarded.bootstrap}, environment, part)


def test_strategies_of_groups(upstream, guarded):
    upstream("0132_strategy_ordering", {"bootstrap.servers": guarded.bootstrap})
