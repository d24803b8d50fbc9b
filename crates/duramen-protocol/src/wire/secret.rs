//! Bytes that nobody may see in a log.

use std::fmt;

use bytes::Bytes;

use super::field::{Ctx, Wire};
use super::{DecodeError, Decoder, EncodeError, Encoder};

/// Bytes that are read and written as others, and printed as `***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub Bytes);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Wire for Secret {
    fn bytes_min(ctx: Ctx) -> usize {
        Bytes::bytes_min(ctx)
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        Bytes::read(d, ctx).map(Self)
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        self.0.write(e, ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", Secret(Bytes::from_static(b"hunter2"))), "***");
    }
}
