//! What fuzz targets need of the inside. Not an interface.

use bytes::Bytes;

use crate::record::decode_all;

/// Decodes a round's body; what can be decoded must survive its encoding. True if it could.
pub fn decode_records(body: Bytes) -> bool {
    let Ok(records) = decode_all(body) else { return false };
    let mut again = Vec::new();
    for record in &records {
        record.encode(&mut again);
    }
    assert_eq!(decode_all(again.into()).as_ref(), Ok(&records), "records survive their encoding");
    true
}
