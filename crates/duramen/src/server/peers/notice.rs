//! Notice about a directory that has no place in the cluster. A node sends it to that directory on the connection that
//! it opened, and to the directory that has the place.

use bytes::Bytes;
use duramen_protocol::wire::{Decoder, Encoder, Message, Uuid};

/// Version of the body; a later build puts new fields in tagged fields, as in frames.
const VERSION: i16 = 0;

duramen_protocol::message! {
    /// As bytes. No directory is all zeroes.
    struct Body: versions 0..=0, flexible 0.. {
        index: u64 [0..],
        broker_id: i32 [0..],
        holder: Uuid [0..],
        claimant: Uuid [0..],
        address: String [0..],
        is_holder_here: bool [0..],
    }
}

/// See above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The index of the metadata that it follows from.
    pub(crate) index: u64,
    pub(crate) broker_id: i32,
    /// The directory that has the place; none if the claimant's was retired.
    pub(crate) holder: Option<[u8; 16]>,
    /// The directory that has none.
    pub(crate) claimant: [u8; 16],
    /// Address from which the claimant connects.
    pub(crate) address: String,
    /// True if the holder is connected to the sender of the notice.
    pub(crate) is_holder_here: bool,
}

impl Notice {
    pub(crate) fn encode(&self) -> Bytes {
        let body = Body {
            index: self.index,
            broker_id: self.broker_id,
            holder: Uuid(self.holder.unwrap_or_default()),
            claimant: Uuid(self.claimant),
            address: self.address.clone(),
            is_holder_here: self.is_holder_here,
        };
        let mut e = Encoder::new();
        e.i16(VERSION);
        body.encode(&mut e, VERSION).expect("version 0 carries every field");
        e.into_bytes().freeze()
    }

    /// Reads [`Notice::encode`], or says why not.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Self, &'static str> {
        let malformed = "a notice is malformed";
        let mut d = Decoder::new(bytes.clone());
        if d.i16().ok() != Some(VERSION) {
            return Err("a notice has a version that this build does not know");
        }
        let body = Body::decode(&mut d, VERSION).map_err(|_| malformed)?;
        d.finish().map_err(|_| malformed)?;
        Ok(Self {
            index: body.index,
            broker_id: body.broker_id,
            holder: Some(body.holder.0).filter(|id| *id != [0; 16]),
            claimant: body.claimant.0,
            address: body.address,
            is_holder_here: body.is_holder_here,
        })
    }
}
