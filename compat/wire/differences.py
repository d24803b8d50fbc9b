"""Where a broker may answer otherwise than Apache Kafka: what Kafka answers, what Duramen may answer, and why.

A test writes `check(answer, "name")` at such a place; everything else is asserted alike for both. Kafka's side is
asserted exactly, so that a new Kafka version that changes its mind shows.
"""

import checks

CORRUPT, INVALID_RECORD = 2, 87
UNKNOWN_MEMBER_ID, INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED = 25, 48, 51, 90

# name: (Kafka's answers, Duramen's answers, the reason)
DIFFERENCES = {
    "batch length that lies": (
        {CORRUPT, INVALID_RECORD, -1},
        {CORRUPT, INVALID_RECORD},
        "Kafka answers 2 for a length that is too small, 87 for one that is too large, and -1 for 2^31-1 (it overflows).",
    ),
    "batch that is cut short": (
        {INVALID_RECORD},
        {CORRUPT, INVALID_RECORD},
        "Kafka drops an incomplete batch and finds nothing left (87); the bytes may as well be called damaged (2).",
    ),
    "four bytes after the batch": (
        {0},
        {0, CORRUPT, INVALID_RECORD},
        "Kafka trims what is too short for a batch header without a word; to refuse it is safer, and no client sends it.",
    ),
    "zeroes after the batch": (
        {CORRUPT},
        {CORRUPT, INVALID_RECORD},
        "What follows is long enough for a batch header here, and Kafka finds that header damaged.",
    ),
    "offsets not dense, uncompressed": (
        {0},
        {0, INVALID_RECORD},
        "Kafka does not look at the records' offset deltas unless it must decompress; to refuse such a batch is right too.",
    ),
    "offsets not dense, compressed": (
        {-1},
        {0, INVALID_RECORD},
        "Kafka's own InvalidRecordException ends as UNKNOWN_SERVER_ERROR here; 87 says what is wrong.",
    ),
    "records that do not decompress": (
        {-1},
        {CORRUPT, INVALID_RECORD},
        "Kafka answers UNKNOWN_SERVER_ERROR; a client cannot tell that from a broken broker.",
    ),
    "compressed records that only some clients read": (
        {0},
        {CORRUPT},
        "Kafka's own clients do not look behind the end, nor at some sums and sizes. librdkafka, or what Go and Python bring, would fail in the "
        "consumers; nobody sends it on purpose, so the producer is told.",
    ),
    "APIs that are not there": (
        {("GetTelemetrySubscriptions", "PushTelemetry")},
        {
            (
                *("GetTelemetrySubscriptions", "PushTelemetry", "AddRaftVoter", "RemoveRaftVoter"),
                *("StreamsGroupHeartbeat", "StreamsGroupDescribe"),
            )
        },
        "Kafka has those of telemetry when a plug-in takes it. docs/api-versions.md says of each API whether it is served, and why not.",
    ),
    "features that are supported": (
        {
            (
                ("eligible.leader.replicas.version", 0, 1),
                ("group.version", 0, 1),
                ("kraft.version", 0, 1),
                ("metadata.version", 7, 30),
                ("share.version", 0, 1),
                ("streams.version", 0, 1),
                ("transaction.version", 0, 2),
            )
        },
        {(("group.version", 0, 1), ("share.version", 0, 1), ("transaction.version", 0, 2))},
        "Duramen has those that clients ask for, and neither versions of its metadata nor groups of Kafka Streams.",
    ),
    "features that are supported, below version 4": (
        {(("metadata.version", 7, 30),)},
        {()},
        "As above, and none that may be at level 0.",
    ),
    "features at their level": (
        {
            (
                ("eligible.leader.replicas.version", 1, 1),
                ("group.version", 1, 1),
                ("metadata.version", 30, 30),
                ("share.version", 1, 1),
                ("streams.version", 1, 1),
                ("transaction.version", 2, 2),
            )
        },
        {(("group.version", 1, 1), ("share.version", 1, 1), ("transaction.version", 2, 2))},
        "As above.",
    ),
    "unknown codec": (
        {-1},
        {CORRUPT, 76, INVALID_RECORD},
        "Kafka answers UNKNOWN_SERVER_ERROR; UNSUPPORTED_COMPRESSION_TYPE (76) says what is wrong.",
    ),
    "max timestamp that lies": (
        {0},
        {0, INVALID_RECORD, 32},
        "Kafka computes it anew from the records; to refuse the batch keeps the time index right as well.",
    ),
    "log append time bit of a client": (
        {0},
        {0, INVALID_RECORD, 32},
        "Kafka clears the bit and writes a new CRC; to refuse the batch is right too, to show it to consumers is not.",
    ),
    "repeat older than five batches": (
        {45},
        {45, 46},
        "Kafka's DUPLICATE_SEQUENCE_NUMBER (46) is never seen: what it no longer remembers is out of order.",
    ),
    "unknown producer with a sequence above 0": (
        {0},
        {0, 59},
        "Kafka takes the first batch of a producer it does not know at any sequence; so does Duramen, but not of one whose id"
        " is newer than the topic and all that the partition has forgotten: there batches before this one are missing.",
    ),
    "lz4 level that is not the default": (
        {0},
        {40, 42},
        "Kafka takes its fast compressor for level 9, the default, and slower ones for all others. Duramen has the fast one alone, and says so.",
    ),
    "unknown operation on a setting": (
        {-1},
        {42},
        "Kafka answers UNKNOWN_SERVER_ERROR; INVALID_REQUEST says what is wrong.",
    ),
    "source of min.insync.replicas": (
        {3},
        {5},
        "Kafka sets it for the whole cluster when that is formatted with eligible leader replicas, which Duramen has not.",
    ),
    "synonyms of a setting that has several units": (
        {0},
        {1},
        "Kafka names the setting in hours as the one behind it, and then leaves it out; in Duramen there is the one in ms.",
    ),
    "default of log.retention.ms": (
        {None},
        {"604800000"},
        "In Kafka it has no value where the one in hours holds; in Duramen all units are one setting.",
    ),
    "default of log.roll.ms": (
        {None},
        {"604800000"},
        "In Kafka it has no value where the one in hours holds; in Duramen all units are one setting.",
    ),
    "default of log.roll.jitter.ms": (
        {None},
        {"0"},
        "In Kafka it has no value where the one in hours holds; in Duramen all units are one setting.",
    ),
    "whether it changes while the broker runs": (
        {False},
        {True},
        "Duramen's storage and listener take log.index.interval.bytes and max.connections at the start.",
    ),
    "fraction that only Java reads": (
        {0},
        {40},
        "Double.parseDouble takes 0.5d and 0x1p-1; that NaN passes for a number between 0 and 1 is a slip of Kafka's.",
    ),
    "segments below a megabyte": (
        {40},
        {0},
        "Kafka's bound since 4.0. Duramen's is 4096 bytes: tests roll segments, and small ones do no harm.",
    ),
    "local retention beside retention": (
        {42},
        {0},
        "Kafka compares it with log.retention.ms; Duramen has no tiers, and the setting does nothing.",
    ),
    "setting that is live in Kafka only": (
        {0},
        {42},
        "Duramen takes them at the start and, the limits of connections, on SIGHUP; the file is the one place of them.",
    ),
    "settings of loggers": (
        {True},
        {False},
        "Duramen's log has one level, given at the start.",
    ),
    "settings of a topic that Kafka does not have": (
        {()},
        {("errors.deadletterqueue.group.enable", "fast.append.enable", "queue.enable", "queue.erase.lag.ms")},
        "Dead letters of share groups (KIP-1191) are in no release of Apache Kafka yet. Queues and fast appends are Duramen's own.",
    ),
    "unknown setting of a broker": (
        {0},
        {42},
        "Kafka keeps it for plug-ins, a mistyped one too; Duramen has no plug-ins, and names the nearest setting it has.",
    ),
    "directory of a voter": (
        {True},
        {False},
        "Kafka does not know it of voters from its configuration; Duramen always does.",
    ),
    "quota that is not enforced": (
        {0},
        {42},
        "Duramen enforces rates of bytes and the time of requests; to take other quotas and do nothing would be a lie.",
    ),
    "deleted topic in a session": (
        {103},
        {100, 103},
        "Kafka's session remembers the topic's name and finds another id under it (INCONSISTENT_TOPIC_ID).",
    ),
    "share fetch of a topic id that is none": (
        {-1},
        {100},
        "Kafka answers UNKNOWN_SERVER_ERROR to the whole request; UNKNOWN_TOPIC_ID says what is wrong, and of which topic.",
    ),
    "classic member out that has partitions": (
        {0},
        {UNKNOWN_MEMBER_ID},
        "In a group of the consumer protocol Kafka takes any id of a classic member. One whose session was over joins so with partitions that "
        "others have, and commits for them in its new epoch. As in a classic group it is to join as somebody new first, which has nothing.",
    ),
    "commit before its records": (
        {INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS},
        {CONCURRENT_TRANSACTIONS},
        "KafkaProducer may send the end of a transaction before its records, and is done for if the last one is over by then. With Kafka it "
        "mostly is not; Duramen ends transactions sooner, and takes such a commit for one that came too early for another second.",
    ),
    "commit of what was aborted": (
        {INVALID_TXN_STATE},
        {PRODUCER_FENCED},
        "Of version 2 only an abort that the coordinator decided is met by a commit, and INVALID_TXN_STATE is the end of a producer and of a "
        "thread of Kafka Streams. Kafka after 4.3 answers PRODUCER_FENCED as well (KAFKA-20785).",
    ),
}


# In the place of an element that an array of the other broker has not.
ABSENT = "<absent>"
ANY = None
NO_UUID = "00000000-0000-0000-0000-000000000000"
REFUSED = (
    *("test_gzip_that_only_some_clients_read", "test_lz4_that_only_some_clients_read", "test_snappy_that_only_some_clients_read"),
    *("test_zstd_that_only_some_clients_read", "test_bytes_after_the_batch_are_never_kept"),
)
VALIDATED = (
    *("test_a_creation_that_is_only_validated_creates_nothing", "test_settings_of_topics_take_the_values_that_kafka_takes"),
    *("test_the_shortest_compaction_lag_is_no_longer_than_the_longest",),
)

# Fields in which an answer may be another than Kafka's in the golden files, where no test asserts Kafka's side: the tests, the
# field, Kafka's values, Duramen's values, and the reason. An element of an array stands here by its name.
ANSWERS = [
    (ANY, "ApiVersions.ApiKeys", ANY, {ABSENT}, "APIs that are not there."),
    (ANY, "ApiVersions.SupportedFeatures", ANY, {ABSENT}, "Features that are supported."),
    (ANY, "ApiVersions.FinalizedFeatures", ANY, {ABSENT}, "Features at their level."),
    (ANY, "CreateTopics.Topics.Configs", {"min.insync.replicas"}, {ABSENT}, "Source of min.insync.replicas."),
    (ANY, "DescribeConfigs.Results.Configs", {"min.insync.replicas"}, {ABSENT}, "Source of min.insync.replicas."),
    (
        ANY,
        "DescribeConfigs.Results.Configs.Synonyms",
        {ABSENT},
        {"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms"},
        "Synonyms of a setting that has several units.",
    ),
    (ANY, "DescribeQuorum.Topics.Partitions.CurrentVoters.ReplicaDirectoryId", {NO_UUID}, ANY, "Directory of a voter."),
    (ANY, "DescribeQuorum.Nodes.Listeners", {"CONTROLLER", ABSENT}, {"PLAINTEXT", ABSENT}, "Duramen's nodes have one listener for all."),
    (
        {"test_metadata_creates_a_topic_when_request_and_broker_allow_it", "test_old_metadata_versions_without_the_flag_create_topics"},
        "Metadata.Topics.ErrorCode",
        {3},
        {0},
        "Kafka answers before the topic is there; Duramen waits for it, and its client need not ask again.",
    ),
    (
        {"test_whoever_fetches_for_a_group_says_which_and_who_it_is"},
        "ShareFetch.ErrorCode",
        {-1},
        {0},
        "Share fetch of a topic id that is none: the code is the partition's.",
    ),
    (REFUSED, "Fetch.Responses.Partitions.HighWatermark", ANY, ANY, "Duramen has refused records that Kafka has taken."),
    (REFUSED, "Fetch.Responses.Partitions.LastStableOffset", ANY, ANY, "As above."),
    (REFUSED, "Fetch.Responses.Partitions.Records", ANY, ANY, "As above."),
    (
        {"test_a_classic_member_that_was_out_lets_go_before_it_joins_again"},
        "JoinGroup.GenerationId",
        {2},
        {1},
        "The generation is the epoch of a group of the consumer protocol; where that begins is a broker's own affair.",
    ),
    (
        VALIDATED,
        "CreateTopics.Topics.TopicId",
        ANY,
        {NO_UUID},
        "Kafka answers a validation with the id of a topic that is not created.",
    ),
    (
        {"test_what_a_connection_held_that_is_gone_is_there_for_others"},
        "ShareFetch.Responses.Partitions.AcquiredRecords.DeliveryCount",
        {2},
        {1},
        "In Duramen a delivery that ends with its session does not count: docs/testing.md.",
    ),
    # What follows is not intended. Who mends Duramen takes the entry away.
    (
        ANY,
        "Produce.Responses.PartitionResponses.LogStartOffset",
        {0, -1},
        {0, -1},
        "Of a refused batch, Kafka tells the start of the log beside INVALID_RECORD alone; Duramen beside other codes, and not beside that.",
    ),
    (
        ANY,
        "Produce.Responses.PartitionResponses.LogAppendTimeMs",
        {1_700_000_000_000, "<now>"},
        {-1},
        "Kafka answers the repeat of a batch with the time of its records, also where that is not the time of the append.",
    ),
    (ANY, "Fetch.Responses.Partitions.AbortedTransactions", {None}, {()}, "Beside an error Kafka has null for a reader of committed records."),
    (ANY, "Fetch.Responses.Partitions.AbortedTransactions", {()}, {None}, "Beside an unknown topic or partition Kafka has an empty list."),
    (
        {"test_offsets_of_many_topics_and_partitions_are_listed_at_once"},
        "ListOffsets.Topics",
        ANY,
        ANY,
        "Kafka answers a topic that a request names several times as one; Duramen as often as it is named.",
    ),
    (
        {"test_settings_of_topics_take_the_values_that_kafka_takes"},
        "CreateTopics.Topics.Configs.Value",
        ANY,
        ANY,
        "Kafka answers a creation with the values as the request has them; Duramen as their types have them.",
    ),
    (
        {"test_nothing_can_be_committed_but_it_can_be_aborted_for_a_new_epoch"},
        "DescribeTransactions.TransactionStates.TransactionStartTimeMs",
        {"<now>"},
        {-1},
        "Kafka gives the abort of nothing a time of its start.",
    ),
    (
        {"test_share_sessions_count_their_requests"},
        "ShareAcknowledge.Responses",
        {ABSENT},
        ANY,
        "Kafka leaves out a partition of which the request has no decision.",
    ),
]


# The names of the differences that the running test has met.
used = []


def check(answer, name, what=""):
    kafka, duramen, _reason = DIFFERENCES[name]
    used.append(name)
    allowed = kafka if checks.broker_kind() == "kafka" else duramen
    assert answer in allowed, f"{what or name}: expected one of {sorted(allowed)}, got {answer!r}"


def allows(test, field, kafka, now):
    """Whether a field of an answer may have another value than in the golden file. Kafka may have its own other values."""
    is_kafka = checks.broker_kind() == "kafka"
    met = [DIFFERENCES[name] for name in used]
    if any(among(kafka, kafkas) and among(now, kafkas if is_kafka else ours) for kafkas, ours, _reason in met):
        return True
    return not is_kafka and any(
        (tests is ANY or test in tests) and field == named and among(kafka, kafkas) and among(now, ours)
        for tests, named, kafkas, ours, _reason in ANSWERS
    )


def among(value, values):
    """An empty array stands in a set as an empty tuple; no other array or structure does."""
    value = () if value == [] else value
    return values is ANY or (not isinstance(value, (dict, list)) and value in values)
