//! The view of a log's entries that an image keeps: producers, decided compactions, fence and pointer, stretches.

use bytes::Bytes;
use duramen_storage::op::{OpKind, RecoveredReplica};
use duramen_storage::sabotage::{self, Bug};

use super::Partition;
use super::compaction::Decided;
use super::controls::Controls;
use super::producers::Producers;
use super::stretches::Stretches;

/// First byte of an image that begins with fence and pointer.
const CONTROLS: u8 = 7;
/// First byte of an image that begins with the last stretch.
const STRETCH: u8 = 10;

/// Contents of a partition's image.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) stretches: Stretches,
    pub(crate) controls: Controls,
    pub(crate) decided: Decided,
    pub(crate) producers: Producers,
}

impl View {
    /// Reads an image; `None` if this version cannot.
    pub(crate) fn of(mut image: &[u8], now_us: u64) -> Option<Self> {
        let mut stretches = Stretches::default();
        if let Some((&STRETCH, rest)) = image.split_first() {
            image = rest;
            stretches = Stretches::decode(&mut image)?;
        }
        let mut controls = Controls::default();
        if let Some((&CONTROLS, rest)) = image.split_first() {
            image = rest;
            controls = Controls::decode(&mut image)?;
        }
        let (decided, rest) = Decided::decode(image)?;
        let producers = Producers::from_image(rest, now_us)?;
        Some(Self { stretches, controls, decided, producers })
    }

    /// Returns the members of the stretch that a replica's log ends in, if it does.
    pub(crate) fn members_at_end(found: &RecoveredReplica) -> Vec<u64> {
        let mut stretches = Self::of(&found.image, 0).unwrap_or_default().stretches;
        for entry in &found.entries {
            stretches.note(entry);
        }
        stretches.current().map(|it| it.members.clone()).unwrap_or_default()
    }
}

impl Partition {
    pub(super) fn take_view(&mut self, view: View) {
        self.stretches = view.stretches;
        self.controls = view.controls;
        self.compacting.decided = view.decided;
        self.producers = view.producers;
    }

    /// Returns the view's image after the entry at an index.
    pub(super) fn view_image(&self, index: u64) -> Bytes {
        let producers = self.producers.image(index);
        let decided = &self.compacting.decided;
        if decided.index == 0 && self.controls.is_empty() && self.stretches.is_empty() {
            return producers;
        }
        let mut image = Vec::new();
        if !self.stretches.is_empty() && !sabotage::is(Bug::ImageWithoutStretch) {
            image.push(STRETCH);
            self.stretches.encode(&mut image);
        }
        if !self.controls.is_empty() && !sabotage::is(Bug::ImageWithoutControls) {
            image.push(CONTROLS);
            self.controls.encode(&mut image);
        }
        if decided.index > 0 {
            image.extend_from_slice(&decided.encode());
        }
        image.extend_from_slice(&producers);
        image.into()
    }

    /// Returns the view's image at the applied index.
    pub(crate) fn image(&self) -> OpKind {
        let index = self.group.applied();
        if sabotage::is(Bug::ImageWithoutProducers) {
            return OpKind::Image { index, image: Producers::default().image(index) };
        }
        OpKind::Image { index, image: self.view_image(index) }
    }
}

#[cfg(test)]
mod tests {
    use duramen_storage::op::{Content, LogEntry};

    use super::super::internal::Internal;
    use super::*;

    /// Images of all kinds of logs begin with different bytes, and each is read as what it is.
    #[test]
    fn an_image_with_a_stretch_goes_on_with_all_that_others_have() {
        let open = Internal::Open { members: vec![2, 3] }.encode();
        let content = Content::Internal([&[1, 0, 2][..], &open].concat().into());
        let mut stretches = Stretches::default();
        stretches.apply(&LogEntry { index: 8, term: 4, content });
        let mut head = vec![STRETCH];
        stretches.encode(&mut head);
        let mut controls = vec![CONTROLS];
        Controls::default().encode(&mut controls);
        let mut decided = Decided::default();
        decided.apply(5, (9, 9), 0, true);
        let erased = decided.encode();
        let producers = Producers::default().image(8).to_vec();
        for parts in [
            vec![&producers],
            vec![&erased, &producers],
            vec![&controls, &producers],
            vec![&controls, &erased, &producers],
        ] {
            let rest: Vec<u8> = parts.into_iter().flatten().copied().collect();
            let view = View::of(&rest, 0).expect("it can be read");
            assert!(view.stretches.is_empty());
            let with = View::of(&[&head[..], &rest].concat(), 0).expect("it can be read");
            assert_eq!(with.stretches.current(), stretches.current());
            assert_eq!(with.decided.index, view.decided.index);
        }
    }
}
