//! # Room card: describe
//!
//! Purpose:    describe for people the bytes that storage keeps for the node and cannot read.
//! Owns:       nothing: other rooms own the formats.
//! Interface:  [`image`], [`internal`]; [`rights`], for the simulator's oracle.
//! Invariants: this room calls bytes unreadable exactly if the node would refuse them.
//! Never:      I/O.
//! Tests:      below.
//! Start at:   [`image`].

use bytes::Bytes;
use duramen_storage::ReplicaId;
use duramen_storage::op::Compacted;

use crate::acls::Acl;
use crate::controller::METADATA_REPLICA;
use crate::controller::image::Image;
use crate::metadata_records::{MetadataRecord, records_of};
use crate::partition::View;
use crate::partition::internal::Internal;
use crate::raft::internal_of;

/// Replica of the metadata log, whose image has another form than that of a partition.
pub const METADATA: ReplicaId = METADATA_REPLICA;

/// Returns the facts in an image of this replica, one a line, or `None` if the image cannot be read.
pub fn image(replica: ReplicaId, bytes: &Bytes) -> Option<Vec<String>> {
    if replica == METADATA_REPLICA {
        let records = Image::records_of(bytes)?;
        Some(records.iter().map(|record| format!("{record:?}")).collect())
    } else {
        let View { stretches, controls, decided, producers } = View::of(bytes, 0)?;
        let compacted = (decided.index > 0).then(|| {
            let Compacted { index, below, tombstones_below } = decided.wanted();
            format!("compacted below {below}  tombstones below {tombstones_below}  entry {index}")
        });
        let lines = compacted.into_iter().chain(controls.lines()).chain(stretches.lines());
        Some(lines.chain(producers.lines()).collect())
    }
}

/// Describes an entry that is no batch.
pub fn internal(bytes: &[u8]) -> String {
    let entry = internal_of(bytes).map(|entry| entry.map(Internal::decode));
    match entry {
        Ok(None) => "Raft's own".to_owned(),
        Ok(Some(Some(entry))) => format!("{entry:?}"),
        Ok(Some(None)) | Err(()) => "unknown".to_owned(),
    }
}

/// Change of a rule of access or of a user, as the metadata log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// There is a rule, under this id.
    Rule([u8; 16], Acl),
    /// The rule of this id is no more.
    RuleGone([u8; 16]),
    /// A user has a password, of this mechanism and with this salt.
    User(String, i8, Bytes),
    /// A user has no password of this mechanism any more.
    UserGone(String, i8),
}

/// Returns the changes of rules and users in batches of the metadata log, with the base offsets of these batches. None
/// if a batch cannot be read.
pub fn rights(bytes: Bytes) -> Option<Vec<(i64, Right)>> {
    let right = |record: MetadataRecord| match record {
        MetadataRecord::SetAcl(it) => Some(Right::Rule(it.id.0, it.acl()?)),
        MetadataRecord::RemoveAcl(it) => Some(Right::RuleGone(it.id.0)),
        MetadataRecord::SetScramCredential(it) => {
            Some(Right::User(it.user, it.mechanism, it.salt.0))
        }
        MetadataRecord::RemoveScramCredential(it) => Some(Right::UserGone(it.user, it.mechanism)),
        _ => None,
    };
    let of = |(offset, records): (i64, Vec<MetadataRecord>)| {
        records.into_iter().filter_map(right).map(move |it| (offset, it))
    };
    Some(records_of(bytes)?.into_iter().flat_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_told_or_called_unreadable() {
        let partition = ReplicaId(5);
        assert_eq!(image(partition, &Bytes::new()), Some(Vec::new()));
        let mut bytes = vec![1];
        bytes.extend_from_slice(&77i64.to_be_bytes());
        bytes.extend_from_slice(&3i16.to_be_bytes());
        bytes.push(1);
        bytes.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 6]);
        bytes.extend_from_slice(&100i64.to_be_bytes());
        let told = image(partition, &bytes.clone().into()).expect("readable");
        assert_eq!(told, ["producer 77  epoch 3  sequences 4..6 at offset 100"]);
        bytes.pop();
        assert_eq!(image(partition, &bytes.into()), None);
        let told = image(METADATA, &Image::empty().encode(0)).expect("readable");
        assert!(told[0].contains("AllocatePeerIds"), "{told:?}");
        assert_eq!(image(METADATA, &Bytes::from_static(&[9])), None);
    }

    #[test]
    fn internal_entries_are_told_by_name() {
        assert_eq!(internal(&[1, 0]), "Raft's own");
        let trim = [&[1, 0, 2][..], &Internal::Trim { offset: 7 }.encode()[..]].concat();
        assert_eq!(internal(&trim), "Trim { offset: 7 }");
        assert_eq!(internal(&[1, 0, 2, 99, 1]), "unknown");
    }
}
