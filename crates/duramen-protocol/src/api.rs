//! # Room card: api
//!
//! Purpose:    the one table of Kafka's APIs: which exist, in which versions, and which of them we serve.
//! Owns:       [`ApiKey`], [`API_TABLE`], [`OWN_TABLE`], [`Api`], [`Status`], header versions, `docs/api-versions.md`.
//! Interface:  [`Api::of`], [`advertised`], [`Api::accepts`], [`ApiKey::from_code`].
//! Invariants: one row per key of Kafka's, in order, without gaps; what is advertised is served; what is served is
//!             declared in `messages` over the whole accepted range; our own APIs have keys that Kafka does not come
//!             to, and nobody is told of them but our own clients.
//! Never:      anything about a message but its versions.
//! Tests:      `api/tests.rs`; `DURAMEN_WRITE_DOCS=1 cargo test -p duramen-protocol` rewrites the document.
//! Start at:   [`API_TABLE`].

use std::fmt;

use crate::wire::Versions;

pub mod document;

/// State of an API: served, planned or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Advertised and answered in all accepted versions.
    Served,
    /// Known, planned, and not answered yet.
    NotYet,
    /// Never answered, and why.
    Refused(&'static str),
}

/// One row of [`API_TABLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api {
    /// The key.
    pub key: ApiKey,
    /// Kafka's name of the API.
    pub name: &'static str,
    /// The versions that Apache Kafka 4 accepts, and so do we once the API is served.
    pub accepted: Versions,
    /// The versions we say we accept, if the API is served.
    pub advertised: Versions,
    /// The versions with compact lengths, tagged fields and the longer headers.
    pub flexible: Versions,
    /// State of the API: served, planned or refused.
    pub status: Status,
}

impl Api {
    /// Returns the row of `key`.
    pub fn of(key: ApiKey) -> &'static Self {
        let at = usize::try_from(key.code()).expect("keys are not negative");
        let own = || OWN_TABLE.iter().find(|api| api.key == key);
        API_TABLE.get(at).or_else(own).expect("every key has a row")
    }

    /// Tells whether a request of this version gets an answer.
    pub fn accepts(&self, version: i16) -> bool {
        self.is_served() && self.accepted.contains(version)
    }

    /// Tells whether the API is served at all.
    pub fn is_served(&self) -> bool {
        self.status == Status::Served
    }

    /// Returns the version of the request header: 2 has tagged fields, 1 has none. (0, without a client id, is gone.)
    pub fn request_header_version(&self, version: i16) -> i16 {
        if self.flexible.contains(version) { 2 } else { 1 }
    }

    /// Returns the version of the response header: 1 has tagged fields, 0 has none.
    pub fn response_header_version(&self, version: i16) -> i16 {
        // A client that asks for the versions does not know yet how the answer's header looks, so it never changes.
        i16::from(self.key != ApiKey::ApiVersions && self.flexible.contains(version))
    }
}

/// Returns the rows that `ApiVersions` lists.
pub fn advertised() -> impl Iterator<Item = &'static Api> {
    API_TABLE.iter().filter(|api| api.is_served())
}

/// Returns the rows that `ApiVersions` lists in addition to a client that names itself `software`.
pub fn advertised_to(software: &str) -> impl Iterator<Item = &'static Api> {
    let is_ours = software.starts_with(OWN_SOFTWARE);
    OWN_TABLE.iter().filter(move |_| is_ours)
}

/// Name of our own client in `ApiVersions`. The names of libraries for other languages begin with it.
pub const OWN_SOFTWARE: &str = "duramen";

/// Error for a key that is in neither table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown api key {0}")]
pub struct UnknownApiKey(pub i16);

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Api::of(*self).name)
    }
}

macro_rules! apis {
    ($($key:literal $name:ident: versions $first:tt $(..= $last:literal)?, flexible $flexible:tt,
       $status:expr $(, advertised $from:literal ..= $to:literal)?;)*
     own
     $($own_key:literal $own_name:ident: versions $own_first:literal ..= $own_last:literal;)*) => {
        /// The APIs of Kafka 4, and ours, by the numbers they have on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(
                #[doc = concat!("Key ", $key, ".")]
                $name = $key,
            )*
            $(
                #[doc = concat!("Key ", $own_key, ", our own.")]
                $own_name = $own_key,
            )*
        }

        impl ApiKey {
            /// Returns the number on the wire.
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$name => $key,)*
                    $(Self::$own_name => $own_key,)*
                }
            }

            /// Returns the key with this number.
            pub const fn from_code(code: i16) -> Result<Self, UnknownApiKey> {
                match code {
                    $($key => Ok(Self::$name),)*
                    $($own_key => Ok(Self::$own_name),)*
                    other => Err(UnknownApiKey(other)),
                }
            }
        }

        /// Every API of Kafka 4.3, in order of key: the single source for dispatch, `ApiVersions` and the docs.
        pub const API_TABLE: &[Api] = &[$(
            Api {
                key: ApiKey::$name,
                name: stringify!($name),
                accepted: apis!(@versions $first $($last)?),
                advertised: apis!(@advertised $first $($last)?; $($from $to)?),
                flexible: apis!(@flexible $flexible),
                status: $status,
            },
        )*];

        /// The APIs that Kafka does not have, all of whose versions are flexible.
        pub const OWN_TABLE: &[Api] = &[$(
            Api {
                key: ApiKey::$own_name,
                name: stringify!($own_name),
                accepted: Versions::between($own_first, $own_last),
                advertised: Versions::between($own_first, $own_last),
                flexible: Versions::from(0),
                status: Served,
            },
        )*];
    };
    (@versions none) => { Versions::NONE };
    (@versions $first:literal $last:literal) => { Versions::between($first, $last) };
    (@advertised $first:tt $($last:literal)?;) => { apis!(@versions $first $($last)?) };
    (@advertised $first:tt $last:literal; $from:literal $to:literal) => {
        Versions::between($from, $to)
    };
    (@flexible none) => { Versions::NONE };
    (@flexible $from:literal) => { Versions::from($from) };
}

use Status::{NotYet, Refused, Served};

const REMOVED: &str = "removed in Apache Kafka 4.0";
const NO_RECEIVER: &str =
    "metrics of clients have no receiver, and without one Apache Kafka does not offer it either";
const INTERNAL: &str = "spoken only between Apache Kafka's own nodes";

// We accept `Produce` from version 3 but advertise it from 0. librdkafka before 2.8 reads the lower bound as a sign
// of the broker's features, and turns some off (KAFKA-18659). `InitProducerId` 6 is unstable in Kafka 4.3.
apis! {
    0 Produce: versions 3..=13, flexible 9, Served, advertised 0..=13;
    1 Fetch: versions 4..=18, flexible 12, Served;
    2 ListOffsets: versions 1..=11, flexible 6, Served;
    3 Metadata: versions 0..=13, flexible 9, Served;
    4 LeaderAndIsr: versions none, flexible none, Refused(REMOVED);
    5 StopReplica: versions none, flexible none, Refused(REMOVED);
    6 UpdateMetadata: versions none, flexible none, Refused(REMOVED);
    7 ControlledShutdown: versions none, flexible none, Refused(REMOVED);
    8 OffsetCommit: versions 2..=10, flexible 8, Served;
    9 OffsetFetch: versions 1..=10, flexible 6, Served;
    10 FindCoordinator: versions 0..=6, flexible 3, Served;
    11 JoinGroup: versions 0..=9, flexible 6, Served;
    12 Heartbeat: versions 0..=4, flexible 4, Served;
    13 LeaveGroup: versions 0..=5, flexible 4, Served;
    14 SyncGroup: versions 0..=5, flexible 4, Served;
    15 DescribeGroups: versions 0..=6, flexible 5, Served;
    16 ListGroups: versions 0..=5, flexible 3, Served;
    17 SaslHandshake: versions 0..=1, flexible none, Served;
    18 ApiVersions: versions 0..=4, flexible 3, Served;
    19 CreateTopics: versions 2..=7, flexible 5, Served;
    20 DeleteTopics: versions 1..=6, flexible 4, Served;
    21 DeleteRecords: versions 0..=2, flexible 2, Served;
    22 InitProducerId: versions 0..=5, flexible 2, Served;
    23 OffsetForLeaderEpoch: versions 2..=4, flexible 4, Served;
    24 AddPartitionsToTxn: versions 0..=5, flexible 3, Served;
    25 AddOffsetsToTxn: versions 0..=4, flexible 3, Served;
    26 EndTxn: versions 0..=5, flexible 3, Served;
    27 WriteTxnMarkers: versions 1..=2, flexible 1, Served;
    28 TxnOffsetCommit: versions 0..=5, flexible 3, Served;
    29 DescribeAcls: versions 1..=3, flexible 2, Served;
    30 CreateAcls: versions 1..=3, flexible 2, Served;
    31 DeleteAcls: versions 1..=3, flexible 2, Served;
    32 DescribeConfigs: versions 1..=4, flexible 4, Served;
    33 AlterConfigs: versions 0..=2, flexible 2, Served;
    34 AlterReplicaLogDirs: versions 1..=2, flexible 2, Served;
    35 DescribeLogDirs: versions 1..=5, flexible 2, Served;
    36 SaslAuthenticate: versions 0..=2, flexible 2, Served;
    37 CreatePartitions: versions 0..=3, flexible 2, Served;
    38 CreateDelegationToken: versions 1..=3, flexible 2, Served;
    39 RenewDelegationToken: versions 1..=2, flexible 2, Served;
    40 ExpireDelegationToken: versions 1..=2, flexible 2, Served;
    41 DescribeDelegationToken: versions 1..=3, flexible 2, Served;
    42 DeleteGroups: versions 0..=2, flexible 2, Served;
    43 ElectLeaders: versions 0..=2, flexible 2, Served;
    44 IncrementalAlterConfigs: versions 0..=1, flexible 1, Served;
    45 AlterPartitionReassignments: versions 0..=1, flexible 0, Served;
    46 ListPartitionReassignments: versions 0..=0, flexible 0, Served;
    47 OffsetDelete: versions 0..=0, flexible none, Served;
    48 DescribeClientQuotas: versions 0..=1, flexible 1, Served;
    49 AlterClientQuotas: versions 0..=1, flexible 1, Served;
    50 DescribeUserScramCredentials: versions 0..=0, flexible 0, Served;
    51 AlterUserScramCredentials: versions 0..=0, flexible 0, Served;
    52 Vote: versions 0..=2, flexible 0, Refused(INTERNAL);
    53 BeginQuorumEpoch: versions 0..=1, flexible 1, Refused(INTERNAL);
    54 EndQuorumEpoch: versions 0..=1, flexible 1, Refused(INTERNAL);
    55 DescribeQuorum: versions 0..=2, flexible 0, Served;
    56 AlterPartition: versions 2..=3, flexible 0, Refused(INTERNAL);
    57 UpdateFeatures: versions 0..=2, flexible 0, Served;
    58 Envelope: versions 0..=0, flexible 0, Refused(INTERNAL);
    59 FetchSnapshot: versions 0..=1, flexible 0, Refused(INTERNAL);
    60 DescribeCluster: versions 0..=2, flexible 0, Served;
    61 DescribeProducers: versions 0..=0, flexible 0, Served;
    62 BrokerRegistration: versions 0..=4, flexible 0, Refused(INTERNAL);
    63 BrokerHeartbeat: versions 0..=2, flexible 0, Refused(INTERNAL);
    64 UnregisterBroker: versions 0..=0, flexible 0, Served;
    65 DescribeTransactions: versions 0..=0, flexible 0, Served;
    66 ListTransactions: versions 0..=2, flexible 0, Served;
    67 AllocateProducerIds: versions 0..=0, flexible 0, Refused(INTERNAL);
    68 ConsumerGroupHeartbeat: versions 0..=1, flexible 0, Served;
    69 ConsumerGroupDescribe: versions 0..=1, flexible 0, Served;
    70 ControllerRegistration: versions 0..=0, flexible 0, Refused(INTERNAL);
    71 GetTelemetrySubscriptions: versions 0..=0, flexible 0, Refused(NO_RECEIVER);
    72 PushTelemetry: versions 0..=0, flexible 0, Refused(NO_RECEIVER);
    73 AssignReplicasToDirs: versions 0..=0, flexible 0, Refused(INTERNAL);
    74 ListConfigResources: versions 0..=1, flexible 0, Served;
    75 DescribeTopicPartitions: versions 0..=0, flexible 0, Served;
    76 ShareGroupHeartbeat: versions 1..=1, flexible 0, Served;
    77 ShareGroupDescribe: versions 1..=1, flexible 0, Served;
    78 ShareFetch: versions 1..=2, flexible 0, Served;
    79 ShareAcknowledge: versions 1..=2, flexible 0, Served;
    80 AddRaftVoter: versions 0..=1, flexible 0, NotYet;
    81 RemoveRaftVoter: versions 0..=0, flexible 0, NotYet;
    82 UpdateRaftVoter: versions 0..=0, flexible 0, Refused(INTERNAL);
    83 InitializeShareGroupState: versions 0..=0, flexible 0, Served;
    84 ReadShareGroupState: versions 0..=0, flexible 0, Served;
    85 WriteShareGroupState: versions 0..=1, flexible 0, Served;
    86 DeleteShareGroupState: versions 0..=0, flexible 0, Served;
    87 ReadShareGroupStateSummary: versions 0..=1, flexible 0, Served;
    88 StreamsGroupHeartbeat: versions 0..=0, flexible 0, NotYet;
    89 StreamsGroupDescribe: versions 0..=0, flexible 0, NotYet;
    90 DescribeShareGroupOffsets: versions 0..=1, flexible 0, Served;
    91 AlterShareGroupOffsets: versions 0..=0, flexible 0, Served;
    92 DeleteShareGroupOffsets: versions 0..=0, flexible 0, Served;
    own
    10000 DescribeReplicas: versions 0..=0;
    10001 DescribeFast: versions 0..=0;
    10002 AppendFast: versions 0..=0;
    10003 BeginBackup: versions 0..=0;
}

#[cfg(test)]
mod tests;
