//! # Room card: metadata records
//!
//! Purpose:    the records of the metadata log, one fact each.
//! Owns:       the records' layouts and their framing in record batches.
//! Interface:  [`MetadataRecord::encode`], [`MetadataRecord::decode`], [`records_of`].
//! Invariants: kinds and versions are never reused; a kind or version that is unknown stops the metadata group, because
//!             skipping it would fork the image.
//! Never:      the effects of records (see `image`).
//! Tests:      below.
//! Start at:   [`MetadataRecord`].

use crate::acls::{Acl, AclOperation, Pattern, Permission, ResourceType};
use bytes::Bytes;
use duramen_protocol::batch;
use duramen_protocol::records::Records;
use duramen_protocol::wire::{Decoder, Encoder, Message, Secret, Uuid};

/// Highest kind of the records about users.
pub(crate) const USERS_KIND: u32 = 19;
/// Highest kind of the records about rules of access.
pub(crate) const ACLS_KIND: u32 = 21;
/// Stands for all nodes in [`SetBrokerConfig`].
pub(crate) const ALL_BROKERS: i32 = -1;

duramen_protocol::message! {
    /// A node, as of this start. Its build knows the kinds of records up to `kinds`; 0 is that of a build before users.
    pub struct RegisterBroker: versions 0..=0, flexible 0.. {
        broker_id: i32 [0..],
        directory_id: Uuid [0..],
        incarnation: u64 [0..],
        endpoints: Vec<Endpoint> [0..],
        rack: Option<String> [0.., nullable 0..],
        kinds: u32 [0.., tag 0 in 0..],
    }
    /// Where a node listens.
    pub struct Endpoint {
        listener: String [0..],
        host: String [0..],
        port: u16 [0..],
    }
    /// A topic begins. Its settings and partitions follow.
    pub struct CreateTopic: versions 0..=0, flexible 0.. {
        topic_id: Uuid [0..],
        name: String [0..],
    }
    /// A topic's setting; null takes it back.
    pub struct SetTopicConfig: versions 0..=0, flexible 0.. {
        topic_id: Uuid [0..],
        name: String [0..],
        value: Option<String> [0.., nullable 0..],
    }
    /// Where the replicas of a partition are.
    pub struct PlacePartition: versions 0..=0, flexible 0.. {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        replicas: Vec<PlacedReplica> [0..],
    }
    /// One replica, bound to one data directory.
    #[expect(clippy::struct_field_names, reason = "they are three different ids")]
    pub struct PlacedReplica {
        peer_id: u64 [0..],
        broker_id: i32 [0..],
        directory_id: Uuid [0..],
    }
    /// Order to replace replicas of a partition. Old and new replicas both exist until a [`PlacePartition`] says that
    /// the move is complete. Each move of a partition has a higher number than the one before; moves and peer ids share
    /// one counter. After the move, replicas go to the nodes in `then`, if it names any. A useless replica goes first
    /// this way, before another one takes its place.
    pub struct MovePartition: versions 0..=0, flexible 0.. {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        replicas: Vec<PlacedReplica> [0..],
        target: Vec<u64> [0..],
        origin: Vec<u64> [0..],
        number: u64 [0..],
        then: Vec<i32> [0..],
    }
    /// With which voters the group of a partition that was moved since had begun. Only in images.
    pub struct BearPartition: versions 0..=0, flexible 0.. {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        voters: Vec<u64> [0..],
    }
    /// A topic and all its partitions end.
    pub struct DeleteTopic: versions 0..=0, flexible 0.. {
        topic_id: Uuid [0..],
    }
    /// End of the producer ids that the cluster has given out.
    pub struct AllocateProducerIds: versions 0..=0, flexible 0.. {
        broker_id: i32 [0..],
        end: i64 [0..],
    }
    /// End of the peer ids that the cluster has given out. Occurs in images only: the log has placements instead.
    pub struct AllocatePeerIds: versions 0..=0, flexible 0.. {
        end: u64 [0..],
    }
    /// A node's setting, or with [`ALL_BROKERS`] one of all nodes, set while they run; null takes it back.
    pub struct SetBrokerConfig: versions 0..=0, flexible 0.. {
        broker_id: i32 [0..],
        name: String [0..],
        value: Option<String> [0.., nullable 0..],
    }
    /// A setting of a consumer or share group, which need not be there; null takes it back.
    pub struct SetGroupConfig: versions 0..=0, flexible 0.. {
        group: String [0..],
        name: String [0..],
        value: Option<String> [0.., nullable 0..],
    }
    /// Quota of users, client ids or both. `is_removed` takes it back.
    pub struct SetClientQuota: versions 0..=0, flexible 0.. {
        entity: Vec<QuotaEntity> [0..],
        key: String [0..],
        value: f64 [0..],
        is_removed: bool [0..],
    }
    /// A user or a client id; null is the default.
    pub struct QuotaEntity {
        entity_type: String [0..],
        entity_name: Option<String> [0.., nullable 0..],
    }
    /// Retirement of a data directory from the cluster, for ever: it is lost, or its node is to go.
    pub struct RetireDirectory: versions 0..=0, flexible 0.. {
        directory_id: Uuid [0..],
    }
    /// A node is gone from the cluster. Its directory was retired before.
    pub struct UnregisterBroker: versions 0..=0, flexible 0.. {
        broker_id: i32 [0..],
    }
    /// First producer id that the cluster gave out after it created a topic. Occurs in images only: the log has the
    /// order of records instead.
    pub struct NoteNewcomers: versions 0..=0, flexible 0.. {
        topic_id: Uuid [0..],
        first: i64 [0..],
    }
    /// Keys of a user's password for one SCRAM mechanism.
    pub struct SetScramCredential: versions 0..=0, flexible 0.. {
        user: String [0..],
        mechanism: i8 [0..],
        iterations: u32 [0..],
        salt: Secret [0..],
        stored_key: Secret [0..],
        server_key: Secret [0..],
    }
    /// A user has no credential of this mechanism any more.
    pub struct RemoveScramCredential: versions 0..=0, flexible 0.. {
        user: String [0..],
        mechanism: i8 [0..],
    }
    /// Secret of the cluster, from which credentials of nobody are made. The first one stays.
    pub struct SetSecret: versions 0..=0, flexible 0.. {
        secret: Secret [0..],
    }
    /// A rule of access, by its id.
    pub struct SetAcl: versions 0..=0, flexible 0.. {
        id: Uuid [0..],
        resource_type: i8 [0..],
        name: String [0..],
        pattern: i8 [0..],
        principal: String [0..],
        host: String [0..],
        operation: i8 [0..],
        permission: i8 [0..],
    }
    /// The rule of this id is no more.
    pub struct RemoveAcl: versions 0..=0, flexible 0.. {
        id: Uuid [0..],
    }
    /// Feature level that all nodes of the cluster understand.
    pub struct SetFeature: versions 0..=0, flexible 0.. {
        name: String [0..],
        level: i16 [0..],
    }
}

impl SetAcl {
    /// Makes the record of a rule.
    pub(crate) fn of(id: Uuid, acl: &Acl) -> Self {
        let Acl { resource, name, pattern, principal, host, operation, permission } = acl.clone();
        Self {
            id,
            resource_type: resource.code(),
            name,
            pattern: pattern.code(),
            principal,
            host,
            operation: operation.code(),
            permission: permission.code(),
        }
    }

    /// Returns the rule. A number that this build does not know cannot be in its log: the leader refuses it.
    pub(crate) fn acl(self) -> Option<Acl> {
        Some(Acl {
            resource: ResourceType::from_code(self.resource_type)?,
            name: self.name,
            pattern: Pattern::from_code(self.pattern)?,
            principal: self.principal,
            host: self.host,
            operation: AclOperation::from_code(self.operation)?,
            permission: Permission::from_code(self.permission)?,
        })
    }
}

macro_rules! metadata_records {
    ($($kind:literal $name:ident;)*) => {
        /// One fact.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum MetadataRecord {
            $($name($name),)*
        }

        /// Highest kind of records that this build knows.
        pub const KINDS: u32 = {
            let (kinds, mut highest, mut at) = ([$($kind),*], 0, 0);
            while at < kinds.len() {
                highest = if kinds[at] > highest { kinds[at] } else { highest };
                at += 1;
            }
            highest
        };

        impl MetadataRecord {
            /// Encodes kind, version and body.
            pub(crate) fn encode(&self) -> Bytes {
                let mut e = Encoder::new();
                match self {
                    $(Self::$name(record) => {
                        e.unsigned_varint($kind);
                        e.unsigned_varint(0);
                        record.encode(&mut e, 0).expect("version 0 carries every field");
                    })*
                }
                let bytes = e.into_bytes().freeze();
                debug_assert!(Self::decode(bytes.clone()).is_some(), "a record can be read again");
                bytes
            }

            /// Decodes a record. Returns `None` for a kind or version that this build does not know, or a malformed
            /// body.
            pub(crate) fn decode(bytes: Bytes) -> Option<Self> {
                let mut d = Decoder::new(bytes);
                let kind = d.unsigned_varint().ok()?;
                let version = i16::try_from(d.unsigned_varint().ok()?).ok()?;
                let record = match kind {
                    $($kind => Self::$name(Message::decode(&mut d, version).ok()?),)*
                    _ => return None,
                };
                d.finish().ok()?;
                Some(record)
            }
        }
    };
}

metadata_records! {
    1 RegisterBroker;
    2 CreateTopic;
    3 SetTopicConfig;
    4 PlacePartition;
    5 DeleteTopic;
    6 AllocateProducerIds;
    7 AllocatePeerIds;
    8 SetFeature;
    9 SetBrokerConfig;
    10 SetClientQuota;
    11 MovePartition;
    12 BearPartition;
    13 RetireDirectory;
    14 UnregisterBroker;
    15 SetGroupConfig;
    16 NoteNewcomers;
    17 SetScramCredential;
    18 RemoveScramCredential;
    19 SetSecret;
    20 SetAcl;
    21 RemoveAcl;
}

/// Returns the records of the metadata log's batches in `bytes`, by base offset, or `None` if one cannot be read.
pub(crate) fn records_of(bytes: Bytes) -> Option<Vec<(i64, Vec<MetadataRecord>)>> {
    let mut found = Vec::new();
    for view in batch::batches(bytes) {
        let view = view.ok()?;
        let records = Records::of(&view, 0).ok()?;
        let mut facts = Vec::new();
        for record in &records {
            let value = records.keep(record.ok()?.value?);
            facts.push(MetadataRecord::decode(value)?);
        }
        found.push((view.header().base_offset, facts));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_their_encoding_and_unknown_ones_do_not_decode() {
        let id = Uuid::from_u128(77);
        let replica = PlacedReplica { peer_id: 5, broker_id: 0, directory_id: id };
        let facts = [
            MetadataRecord::CreateTopic(CreateTopic { topic_id: id, name: "t".to_owned() }),
            MetadataRecord::PlacePartition(PlacePartition {
                topic_id: id,
                partition: 3,
                replicas: vec![replica],
            }),
            MetadataRecord::AllocateProducerIds(AllocateProducerIds { broker_id: 0, end: 2000 }),
        ];
        for fact in facts {
            assert_eq!(MetadataRecord::decode(fact.encode()), Some(fact));
        }
        assert_eq!(MetadataRecord::decode(Bytes::from_static(&[99, 0, 0])), None);
        assert_eq!(MetadataRecord::decode(Bytes::from_static(&[5, 1, 0])), None);
    }
}
