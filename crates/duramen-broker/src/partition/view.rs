//! The view of a log's entries that an image keeps: producers, decided compactions, fence and pointer.

use bytes::Bytes;
use duramen_storage::op::OpKind;
use duramen_storage::sabotage::{self, Bug};

use super::Partition;
use super::compaction::Decided;
use super::controls::Controls;
use super::producers::Producers;

/// First byte of an image that begins with fence and pointer.
const CONTROLS: u8 = 7;

/// Contents of a partition's image.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) controls: Controls,
    pub(crate) decided: Decided,
    pub(crate) producers: Producers,
}

impl View {
    /// Reads an image; `None` if this version cannot.
    pub(crate) fn of(mut image: &[u8], now_us: u64) -> Option<Self> {
        let mut controls = Controls::default();
        if let Some((&CONTROLS, rest)) = image.split_first() {
            image = rest;
            controls = Controls::decode(&mut image)?;
        }
        let (decided, rest) = Decided::decode(image)?;
        Some(Self { controls, decided, producers: Producers::from_image(rest, now_us)? })
    }
}

impl Partition {
    pub(super) fn take_view(&mut self, view: View) {
        self.controls = view.controls;
        self.compacting.decided = view.decided;
        self.producers = view.producers;
    }

    /// Returns the view's image after the entry at an index.
    pub(super) fn view_image(&self, index: u64) -> Bytes {
        let producers = self.producers.image(index);
        let decided = &self.compacting.decided;
        if decided.index == 0 && self.controls.is_empty() {
            return producers;
        }
        let mut image = Vec::new();
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
