//! All nodes keep the metadata, and few of them vote.
//!
//! The ids of a cluster's founders in the metadata group were agreed on when it was formed. The id of any other data
//! directory follows from the directory's id, which is 16 random bytes. So a node that joins knows its own id before
//! any node speaks to it. Every node also knows which directory a replica's id belongs to, even before it has read the
//! metadata.

use duramen_protocol::wire::Uuid;
use duramen_storage::sabotage::{self, Bug};

use super::Founder;
use super::image::Image;

/// Count of nodes that vote, once there are as many. A cluster that began with more voters keeps more.
const VOTERS: usize = 3;
/// Ids that follow from a directory's; the others are counted, from 1.
const OF_DIRECTORY: u64 = 1 << 63;

/// Tells whether an id in the metadata group follows from a directory's id.
pub(crate) fn is_of_directory(peer_id: u64) -> bool {
    peer_id & OF_DIRECTORY != 0
}

/// Returns the id of a data directory's replica in the metadata group.
pub(crate) fn peer_of(founders: &[Founder], directory_id: Uuid) -> u64 {
    let founder = founders.iter().find(|it| it.directory_id == directory_id.0);
    founder.map_or_else(
        || {
            let (first, _) = directory_id.0.split_first_chunk().expect("there are 16 bytes");
            u64::from_be_bytes(*first) | OF_DIRECTORY
        },
        |founder| founder.peer_id,
    )
}

/// Voters on the metadata, and observers, which only receive it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quorum {
    pub(crate) voters: Vec<u64>,
    pub(crate) observers: Vec<u64>,
}

impl Quorum {
    /// Computes the quorum from the present voters: each voter that stays keeps its place, and `heard` nodes take the
    /// free places. A node whose directory was retired has no place.
    pub(crate) fn of(
        image: &Image,
        founders: &[Founder],
        voters: &[u64],
        heard: impl Fn(i32) -> bool,
    ) -> Self {
        let staying: Vec<(i32, u64)> = image
            .staying()
            .map(|(id, broker)| (id, peer_of(founders, broker.directory_id)))
            .collect();
        // A founder may not have registered yet.
        let founded = |peer: u64| {
            let founder = founders.iter().find(|it| it.peer_id == peer);
            founder.is_some_and(|it| !image.retired.contains(&Uuid(it.directory_id)))
        };
        let stays = |peer: &u64| {
            sabotage::is(Bug::LeaverVotes)
                || staying.iter().any(|(_, it)| it == peer)
                || founded(*peer)
        };
        let mut kept: Vec<u64> = voters.iter().copied().filter(stays).collect();
        let wanted = VOTERS.max(founders.len()).min(staying.len());
        let others = staying.iter().filter(|(_, peer)| !voters.contains(peer));
        let fit = others.filter(|(id, _)| heard(*id)).map(|(_, peer)| *peer);
        kept.extend(fit.take(wanted.saturating_sub(kept.len())));
        let observers = staying.iter().map(|(_, peer)| *peer).filter(|it| !kept.contains(it));
        let quorum = Self { observers: observers.collect(), voters: kept };
        debug_assert!(
            (1..quorum.voters.len()).all(|at| !quorum.voters[..at].contains(&quorum.voters[at])),
            "a node has one vote"
        );
        quorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata_records::{MetadataRecord, RegisterBroker, RetireDirectory};

    fn directory(byte: u8) -> Uuid {
        Uuid([byte; 16])
    }

    fn founders(count: u8) -> Vec<Founder> {
        let founder = |id: u8| Founder {
            peer_id: id.into(),
            broker_id: id.into(),
            directory_id: directory(id).0,
        };
        (1..=count).map(founder).collect()
    }

    fn register(image: &mut Image, broker_id: i32, byte: u8) {
        let broker = RegisterBroker {
            broker_id,
            directory_id: directory(byte),
            ..RegisterBroker::default()
        };
        image.apply(MetadataRecord::RegisterBroker(broker));
    }

    fn retire(image: &mut Image, byte: u8) {
        let retired = RetireDirectory { directory_id: directory(byte) };
        image.apply(MetadataRecord::RetireDirectory(retired));
    }

    #[test]
    fn voters_grow_to_three_and_the_others_observe() {
        let founders = founders(1);
        let mut image = Image::empty();
        register(&mut image, 1, 1);
        let quorum = |image: &Image, voters: &[u64]| Quorum::of(image, &founders, voters, |_| true);
        assert_eq!(quorum(&image, &[1]).voters, [1]);
        let mut voters = vec![1];
        for id in 2..=4 {
            register(&mut image, i32::from(id), id);
            let joined = quorum(&image, &voters);
            let expected = usize::from(id).min(3);
            assert_eq!(joined.voters.len(), expected);
            assert_eq!(joined.observers.len(), usize::from(id) - expected);
            voters = joined.voters;
        }
        assert_eq!(voters, [1, peer_of(&founders, directory(2)), peer_of(&founders, directory(3))]);
        let silent = Quorum::of(&image, &founders, &[1], |id| id == 4);
        assert_eq!(silent.voters, [1, peer_of(&founders, directory(4))], "others are not heard");
        assert_eq!(silent.observers.len(), 2);
    }

    #[test]
    fn whose_directory_is_retired_votes_no_more_and_its_successor_does() {
        let founders = founders(3);
        let mut image = Image::empty();
        let of = |image: &Image| Quorum::of(image, &founders, &[1, 2, 3], |_| true);
        assert_eq!(of(&image).voters, [1, 2, 3], "none has registered yet");
        (1..=3).for_each(|id| register(&mut image, i32::from(id), id));
        retire(&mut image, 2);
        assert_eq!(of(&image).voters, [1, 3]);
        register(&mut image, 2, 9);
        assert_eq!(of(&image).voters, [1, 3, peer_of(&founders, directory(9))]);
    }

    #[test]
    fn five_founders_stay_five() {
        let founders = founders(5);
        let mut image = Image::empty();
        (1..=5).for_each(|id| register(&mut image, i32::from(id), id));
        retire(&mut image, 5);
        register(&mut image, 5, 9);
        let quorum = Quorum::of(&image, &founders, &[1, 2, 3, 4, 5], |_| true);
        assert_eq!(quorum.voters.len(), 5);
    }
}
