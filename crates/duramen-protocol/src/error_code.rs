//! # Room card: error codes
//!
//! Purpose:    the error codes that responses carry.
//! Owns:       [`ErrorCode`]: number, name, and whether a client may simply try again.
//! Interface:  [`ErrorCode::code`], [`ErrorCode::from_code`], [`ErrorCode::is_retriable`], [`ErrorCode::name`].
//! Invariants: numbers are dense from -1 and never change.
//! Never:      a mapping from our own errors; that belongs to the one who makes the error.
//! Tests:      below.
//! Start at:   the list.

use std::fmt;

macro_rules! error_codes {
    ($($code:literal $variant:ident $name:ident $($retriable:ident)?;)*) => {
        /// An error code of Kafka 4.3. Message fields carry the number: `ErrorCode::NotController.code()`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", stringify!($name), "` (", $code, ")", $(", ", stringify!($retriable),)? ".")]
                #[cfg_attr(any(), doc = "")]
                $variant = $code,
            )*
        }

        impl Default for ErrorCode {
            fn default() -> Self {
                Self::None
            }
        }

        impl ErrorCode {
            /// All codes, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the number on the wire.
            pub const fn code(self) -> i16 {
                match self { $(Self::$variant => $code,)* }
            }

            /// Returns the code with this number, if there is one.
            pub const fn from_code(code: i16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns Kafka's name, in capitals.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name),)* }
            }

            /// Tells whether stock clients try again by themselves.
            pub const fn is_retriable(self) -> bool {
                match self { $(Self::$variant => error_codes!(@retriable $($retriable)?),)* }
            }
        }
    };
    (@retriable) => { false };
    (@retriable retriable) => { true };
}

error_codes! {
    -1 UnknownServerError UNKNOWN_SERVER_ERROR;
    0 None NONE;
    1 OffsetOutOfRange OFFSET_OUT_OF_RANGE;
    2 CorruptMessage CORRUPT_MESSAGE retriable;
    3 UnknownTopicOrPartition UNKNOWN_TOPIC_OR_PARTITION retriable;
    4 InvalidFetchSize INVALID_FETCH_SIZE;
    5 LeaderNotAvailable LEADER_NOT_AVAILABLE retriable;
    6 NotLeaderOrFollower NOT_LEADER_OR_FOLLOWER retriable;
    7 RequestTimedOut REQUEST_TIMED_OUT retriable;
    8 BrokerNotAvailable BROKER_NOT_AVAILABLE;
    9 ReplicaNotAvailable REPLICA_NOT_AVAILABLE retriable;
    10 MessageTooLarge MESSAGE_TOO_LARGE;
    11 StaleControllerEpoch STALE_CONTROLLER_EPOCH;
    12 OffsetMetadataTooLarge OFFSET_METADATA_TOO_LARGE;
    13 NetworkException NETWORK_EXCEPTION retriable;
    14 CoordinatorLoadInProgress COORDINATOR_LOAD_IN_PROGRESS retriable;
    15 CoordinatorNotAvailable COORDINATOR_NOT_AVAILABLE retriable;
    16 NotCoordinator NOT_COORDINATOR retriable;
    17 InvalidTopicException INVALID_TOPIC_EXCEPTION;
    18 RecordListTooLarge RECORD_LIST_TOO_LARGE;
    19 NotEnoughReplicas NOT_ENOUGH_REPLICAS retriable;
    20 NotEnoughReplicasAfterAppend NOT_ENOUGH_REPLICAS_AFTER_APPEND retriable;
    21 InvalidRequiredAcks INVALID_REQUIRED_ACKS;
    22 IllegalGeneration ILLEGAL_GENERATION;
    23 InconsistentGroupProtocol INCONSISTENT_GROUP_PROTOCOL;
    24 InvalidGroupId INVALID_GROUP_ID;
    25 UnknownMemberId UNKNOWN_MEMBER_ID;
    26 InvalidSessionTimeout INVALID_SESSION_TIMEOUT;
    27 RebalanceInProgress REBALANCE_IN_PROGRESS;
    28 InvalidCommitOffsetSize INVALID_COMMIT_OFFSET_SIZE;
    29 TopicAuthorizationFailed TOPIC_AUTHORIZATION_FAILED;
    30 GroupAuthorizationFailed GROUP_AUTHORIZATION_FAILED;
    31 ClusterAuthorizationFailed CLUSTER_AUTHORIZATION_FAILED;
    32 InvalidTimestamp INVALID_TIMESTAMP;
    33 UnsupportedSaslMechanism UNSUPPORTED_SASL_MECHANISM;
    34 IllegalSaslState ILLEGAL_SASL_STATE;
    35 UnsupportedVersion UNSUPPORTED_VERSION;
    36 TopicAlreadyExists TOPIC_ALREADY_EXISTS;
    37 InvalidPartitions INVALID_PARTITIONS;
    38 InvalidReplicationFactor INVALID_REPLICATION_FACTOR;
    39 InvalidReplicaAssignment INVALID_REPLICA_ASSIGNMENT;
    40 InvalidConfig INVALID_CONFIG;
    41 NotController NOT_CONTROLLER retriable;
    42 InvalidRequest INVALID_REQUEST;
    43 UnsupportedForMessageFormat UNSUPPORTED_FOR_MESSAGE_FORMAT;
    44 PolicyViolation POLICY_VIOLATION;
    45 OutOfOrderSequenceNumber OUT_OF_ORDER_SEQUENCE_NUMBER;
    46 DuplicateSequenceNumber DUPLICATE_SEQUENCE_NUMBER;
    47 InvalidProducerEpoch INVALID_PRODUCER_EPOCH;
    48 InvalidTxnState INVALID_TXN_STATE;
    49 InvalidProducerIdMapping INVALID_PRODUCER_ID_MAPPING;
    50 InvalidTransactionTimeout INVALID_TRANSACTION_TIMEOUT;
    51 ConcurrentTransactions CONCURRENT_TRANSACTIONS retriable;
    52 TransactionCoordinatorFenced TRANSACTION_COORDINATOR_FENCED;
    53 TransactionalIdAuthorizationFailed TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    54 SecurityDisabled SECURITY_DISABLED;
    55 OperationNotAttempted OPERATION_NOT_ATTEMPTED;
    56 KafkaStorageError KAFKA_STORAGE_ERROR retriable;
    57 LogDirNotFound LOG_DIR_NOT_FOUND;
    58 SaslAuthenticationFailed SASL_AUTHENTICATION_FAILED;
    59 UnknownProducerId UNKNOWN_PRODUCER_ID;
    60 ReassignmentInProgress REASSIGNMENT_IN_PROGRESS;
    61 DelegationTokenAuthDisabled DELEGATION_TOKEN_AUTH_DISABLED;
    62 DelegationTokenNotFound DELEGATION_TOKEN_NOT_FOUND;
    63 DelegationTokenOwnerMismatch DELEGATION_TOKEN_OWNER_MISMATCH;
    64 DelegationTokenRequestNotAllowed DELEGATION_TOKEN_REQUEST_NOT_ALLOWED;
    65 DelegationTokenAuthorizationFailed DELEGATION_TOKEN_AUTHORIZATION_FAILED;
    66 DelegationTokenExpired DELEGATION_TOKEN_EXPIRED;
    67 InvalidPrincipalType INVALID_PRINCIPAL_TYPE;
    68 NonEmptyGroup NON_EMPTY_GROUP;
    69 GroupIdNotFound GROUP_ID_NOT_FOUND;
    70 FetchSessionIdNotFound FETCH_SESSION_ID_NOT_FOUND retriable;
    71 InvalidFetchSessionEpoch INVALID_FETCH_SESSION_EPOCH retriable;
    72 ListenerNotFound LISTENER_NOT_FOUND retriable;
    73 TopicDeletionDisabled TOPIC_DELETION_DISABLED;
    74 FencedLeaderEpoch FENCED_LEADER_EPOCH retriable;
    75 UnknownLeaderEpoch UNKNOWN_LEADER_EPOCH retriable;
    76 UnsupportedCompressionType UNSUPPORTED_COMPRESSION_TYPE;
    77 StaleBrokerEpoch STALE_BROKER_EPOCH;
    78 OffsetNotAvailable OFFSET_NOT_AVAILABLE retriable;
    79 MemberIdRequired MEMBER_ID_REQUIRED;
    80 PreferredLeaderNotAvailable PREFERRED_LEADER_NOT_AVAILABLE retriable;
    81 GroupMaxSizeReached GROUP_MAX_SIZE_REACHED;
    82 FencedInstanceId FENCED_INSTANCE_ID;
    83 EligibleLeadersNotAvailable ELIGIBLE_LEADERS_NOT_AVAILABLE retriable;
    84 ElectionNotNeeded ELECTION_NOT_NEEDED retriable;
    85 NoReassignmentInProgress NO_REASSIGNMENT_IN_PROGRESS;
    86 GroupSubscribedToTopic GROUP_SUBSCRIBED_TO_TOPIC;
    87 InvalidRecord INVALID_RECORD;
    88 UnstableOffsetCommit UNSTABLE_OFFSET_COMMIT retriable;
    89 ThrottlingQuotaExceeded THROTTLING_QUOTA_EXCEEDED retriable;
    90 ProducerFenced PRODUCER_FENCED;
    91 ResourceNotFound RESOURCE_NOT_FOUND;
    92 DuplicateResource DUPLICATE_RESOURCE;
    93 UnacceptableCredential UNACCEPTABLE_CREDENTIAL;
    94 InconsistentVoterSet INCONSISTENT_VOTER_SET;
    95 InvalidUpdateVersion INVALID_UPDATE_VERSION;
    96 FeatureUpdateFailed FEATURE_UPDATE_FAILED;
    97 PrincipalDeserializationFailure PRINCIPAL_DESERIALIZATION_FAILURE;
    98 SnapshotNotFound SNAPSHOT_NOT_FOUND;
    99 PositionOutOfRange POSITION_OUT_OF_RANGE;
    100 UnknownTopicId UNKNOWN_TOPIC_ID retriable;
    101 DuplicateBrokerRegistration DUPLICATE_BROKER_REGISTRATION;
    102 BrokerIdNotRegistered BROKER_ID_NOT_REGISTERED;
    103 InconsistentTopicId INCONSISTENT_TOPIC_ID retriable;
    104 InconsistentClusterId INCONSISTENT_CLUSTER_ID;
    105 TransactionalIdNotFound TRANSACTIONAL_ID_NOT_FOUND;
    106 FetchSessionTopicIdError FETCH_SESSION_TOPIC_ID_ERROR retriable;
    107 IneligibleReplica INELIGIBLE_REPLICA;
    108 NewLeaderElected NEW_LEADER_ELECTED;
    109 OffsetMovedToTieredStorage OFFSET_MOVED_TO_TIERED_STORAGE;
    110 FencedMemberEpoch FENCED_MEMBER_EPOCH;
    111 UnreleasedInstanceId UNRELEASED_INSTANCE_ID;
    112 UnsupportedAssignor UNSUPPORTED_ASSIGNOR;
    113 StaleMemberEpoch STALE_MEMBER_EPOCH;
    114 MismatchedEndpointType MISMATCHED_ENDPOINT_TYPE;
    115 UnsupportedEndpointType UNSUPPORTED_ENDPOINT_TYPE;
    116 UnknownControllerId UNKNOWN_CONTROLLER_ID;
    117 UnknownSubscriptionId UNKNOWN_SUBSCRIPTION_ID;
    118 TelemetryTooLarge TELEMETRY_TOO_LARGE;
    119 InvalidRegistration INVALID_REGISTRATION;
    120 TransactionAbortable TRANSACTION_ABORTABLE;
    121 InvalidRecordState INVALID_RECORD_STATE;
    122 ShareSessionNotFound SHARE_SESSION_NOT_FOUND retriable;
    123 InvalidShareSessionEpoch INVALID_SHARE_SESSION_EPOCH retriable;
    124 FencedStateEpoch FENCED_STATE_EPOCH;
    125 InvalidVoterKey INVALID_VOTER_KEY;
    126 DuplicateVoter DUPLICATE_VOTER;
    127 VoterNotFound VOTER_NOT_FOUND;
    128 InvalidRegularExpression INVALID_REGULAR_EXPRESSION;
    129 RebootstrapRequired REBOOTSTRAP_REQUIRED;
    130 StreamsInvalidTopology STREAMS_INVALID_TOPOLOGY;
    131 StreamsInvalidTopologyEpoch STREAMS_INVALID_TOPOLOGY_EPOCH;
    132 StreamsTopologyFenced STREAMS_TOPOLOGY_FENCED;
    133 ShareSessionLimitReached SHARE_SESSION_LIMIT_REACHED retriable;
}

impl ErrorCode {
    /// Tells whether the code is `NONE`.
    pub const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }
}

impl From<ErrorCode> for i16 {
    fn from(code: ErrorCode) -> Self {
        code.code()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorCode;

    #[test]
    fn numbers_are_dense_from_minus_one_and_map_back() {
        for (expected, &code) in (-1i16..).zip(ErrorCode::ALL) {
            assert_eq!(code.code(), expected);
            assert_eq!(ErrorCode::from_code(expected), Some(code));
        }
        assert_eq!(ErrorCode::from_code(-2), None);
        assert_eq!(ErrorCode::from_code(i16::try_from(ErrorCode::ALL.len()).expect("small")), None);
    }

    #[test]
    fn well_known_codes_have_their_numbers_and_names() {
        assert_eq!(ErrorCode::UnsupportedVersion.code(), 35);
        assert_eq!(ErrorCode::OutOfOrderSequenceNumber.code(), 45);
        assert_eq!(ErrorCode::UnknownTopicId.name(), "UNKNOWN_TOPIC_ID");
        assert!(ErrorCode::NotLeaderOrFollower.is_retriable());
        assert!(!ErrorCode::OffsetOutOfRange.is_retriable());
        assert!(ErrorCode::default().is_none());
    }
}
