//! Internals for fuzz targets, not an interface.

use bytes::Bytes;

use crate::record::decode_all;

/// Decodes a round's body; decoded records must survive their encoding. Returns true if the body could be decoded.
pub fn decode_records(body: Bytes) -> bool {
    let Ok(records) = decode_all(body) else { return false };
    let mut again = Vec::new();
    for record in &records {
        record.encode(&mut again);
    }
    assert_eq!(decode_all(again.into()).as_ref(), Ok(&records), "records survive their encoding");
    true
}
