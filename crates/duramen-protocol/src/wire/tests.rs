//! Primitives at their edges, and the rules of declared fields.

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    DecodeError, Decoder, EncodeError, Encoder, Hole, Message, RecordData, Uuid, varint_len,
    varlong_len,
};

crate::message! {
    /// A message with every kind of field.
    pub(super) struct Sampler: versions 0..=4, flexible 2.. {
        old: i32 [0..=1],
        text: String [0..],
        maybe: Option<String> [0.., nullable 1..] = Some(String::new()),
        dropped: i64 [3.., ignorable] = 7,
        late: i64 [3..] = 7,
        second: i32 [2.., tag 1 in 2..] = -1,
        first: Vec<Inner> [2.., tag 0 in 2..],
        choice: Option<Inner> [4.., nullable 4..],
        data: RecordData [4..],
    }

    /// Stands in [`Sampler`].
    pub(super) struct Inner {
        number: f64 [0..],
    }
}

fn encoded(message: &Sampler, version: i16) -> Result<Vec<u8>, EncodeError> {
    let mut e = Encoder::new();
    message.encode(&mut e, version)?;
    Ok(e.into_bytes().to_vec())
}

fn decoder(bytes: &[u8]) -> Decoder {
    Decoder::new(Bytes::copy_from_slice(bytes))
}

fn malformed<T: std::fmt::Debug>(result: Result<T, DecodeError>) -> &'static str {
    match result.expect_err("malformed") {
        DecodeError::Malformed { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn every_number_survives_its_variable_length(number in any::<i64>(), shift in 0u32..64) {
        // Shifted, so that all lengths are equally likely.
        let wide = number >> shift;
        let narrow = i32::try_from(wide).unwrap_or(i32::MIN);
        let mut e = Encoder::new();
        e.varlong(wide);
        prop_assert_eq!(e.len(), varlong_len(wide));
        e.varint(narrow);
        prop_assert_eq!(e.len(), varlong_len(wide) + varint_len(narrow));
        e.unsigned_varlong(wide.cast_unsigned());
        e.unsigned_varint(narrow.cast_unsigned());
        let mut d = Decoder::new(e.into_bytes().freeze());
        prop_assert_eq!(d.varlong(), Ok(wide));
        prop_assert_eq!(d.varint(), Ok(narrow));
        prop_assert_eq!(d.unsigned_varlong(), Ok(wide.cast_unsigned()));
        prop_assert_eq!(d.unsigned_varint(), Ok(narrow.cast_unsigned()));
        prop_assert_eq!(d.finish(), Ok(()));
    }

    #[test]
    fn every_uuid_survives_its_text(number in any::<u128>()) {
        let uuid = Uuid::from_u128(number);
        prop_assert_eq!(uuid.to_string().parse(), Ok(uuid));
        prop_assert_eq!(uuid.as_u128(), number);
    }
}

#[test]
fn uuids_have_kafkas_text() {
    assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
    assert_eq!(Uuid::from_u128(1).to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
    assert_eq!(Uuid([0xff; 16]).to_string(), "_____________________w");
    assert!(Uuid::ZERO.is_zero() && !Uuid::from_u128(1).is_zero());
    for wrong in ["", "AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAAA="] {
        assert!(wrong.parse::<Uuid>().is_err(), "{wrong}");
    }
}

#[test]
fn variable_lengths_have_kafkas_bytes() {
    let mut e = Encoder::new();
    e.varint(-1);
    e.varint(300);
    e.unsigned_varint(300);
    assert_eq!(&e.into_bytes()[..], [1, 0xd8, 0x04, 0xac, 0x02]);
}

#[test]
fn overlong_and_overflowing_varints_are_malformed() {
    assert_eq!(malformed(decoder(&[0x80; 5]).unsigned_varint()), "varint is too long");
    assert_eq!(malformed(decoder(&[0x80; 4]).unsigned_varint()), "ends early");
    let overflow = malformed(decoder(&[0xff, 0xff, 0xff, 0xff, 0x1f]).unsigned_varint());
    assert_eq!(overflow, "varint overflows 32 bits");
    assert_eq!(decoder(&[0xff, 0xff, 0xff, 0xff, 0x0f]).unsigned_varint(), Ok(u32::MAX));
    let mut ten = [0xff; 10];
    assert_eq!(malformed(decoder(&ten).unsigned_varlong()), "varint is too long");
    ten[9] = 1;
    assert_eq!(decoder(&ten).unsigned_varlong(), Ok(u64::MAX));
    ten[9] = 2;
    assert_eq!(malformed(decoder(&ten).unsigned_varlong()), "varint is too long");
}

#[test]
fn claimed_lengths_are_checked_against_what_is_there() {
    // Version 0: old, then a string of 5 of which 4 are there; then one of length -2; then one that is null.
    let old = [0, 0, 0, 0];
    let decode = |tail: &[u8]| Sampler::decode(&mut decoder(&[&old, tail].concat()), 0);
    assert_eq!(malformed(decode(b"\0\x05four")), "ends early");
    assert_eq!(malformed(decode(&[0xff, 0xfe])), "negative length");
    assert_eq!(malformed(decode(&[0xff, 0xff])), "null where the field must be present");
    assert_eq!(malformed(decode(&[0, 1, 0xff, 0, 0])), "string is not UTF-8");
    // Version 2: two empty strings, one tagged array that claims 2^28 elements of eight bytes each.
    let claim = [1, 1, 1, 0, 5, 0x81, 0x80, 0x80, 0x80, 0x01];
    let decoded = Sampler::decode(&mut decoder(&claim), 2);
    assert_eq!(malformed(decoded), "array is longer than its frame");
}

#[test]
fn tagged_fields_are_written_in_order_of_tag_and_only_if_set() {
    let bare = Sampler::default();
    assert_eq!(encoded(&bare, 2).expect("fits"), [1, 1, 0]);
    let set = Sampler { second: 5, first: vec![Inner { number: 0.0 }], ..Sampler::default() };
    let bytes = encoded(&set, 2).expect("fits");
    assert_eq!(bytes, [1, 1, 2, 0, 10, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 5]);
    assert_eq!(Sampler::decode(&mut decoder(&bytes), 2), Ok(set));
}

#[test]
fn unknown_tagged_fields_are_passed_over_and_sizes_are_kept_to() {
    let decode = |bytes: &[u8]| {
        let mut d = decoder(bytes);
        Sampler::decode(&mut d, 2).and_then(|m| d.finish().map(|()| m))
    };
    let known = Sampler { second: 5, ..Sampler::default() };
    assert_eq!(decode(&[1, 1, 2, 1, 4, 0, 0, 0, 5, 99, 3, 7, 7, 7]), Ok(known));
    let longer = decode(&[1, 1, 1, 1, 5, 0, 0, 0, 5, 0]);
    assert_eq!(malformed(longer), "field is shorter than its declared size");
    assert_eq!(malformed(decode(&[1, 1, 1, 1, 3, 0, 0, 0, 5])), "ends early");
    assert_eq!(malformed(decode(&[1, 1, 1, 99, 4, 0])), "ends early");
}

#[test]
fn a_version_that_cannot_carry_a_field_fails_unless_it_may_be_dropped() {
    let dropped = Sampler { dropped: 8, ..Sampler::default() };
    assert_eq!(encoded(&dropped, 2), encoded(&Sampler::default(), 2));
    let inexpressible = |message: Sampler, version, expected| {
        let error = encoded(&message, version).expect_err("cannot be expressed");
        let message = "Sampler";
        assert_eq!(error, EncodeError::Inexpressible { message, field: expected, version });
    };
    inexpressible(Sampler { late: 8, ..Sampler::default() }, 2, "late");
    inexpressible(Sampler { old: 1, ..Sampler::default() }, 2, "old");
    inexpressible(Sampler { second: 5, ..Sampler::default() }, 1, "second");
    let null = Sampler { maybe: None, ..Sampler::default() };
    assert_eq!(encoded(&null, 0), Err(EncodeError::Null { version: 0 }));
    assert_eq!(encoded(&null, 1).expect("null-able from 1"), [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
}

#[test]
fn a_field_that_is_absent_reads_as_its_default() {
    let bytes = encoded(&Sampler::default(), 1).expect("fits");
    let decoded = Sampler::decode(&mut decoder(&bytes), 1).expect("reads");
    assert_eq!((decoded.dropped, decoded.late, decoded.second), (7, 7, -1));
}

#[test]
fn structs_that_may_be_null_have_a_byte_before_them() {
    let none = encoded(&Sampler::default(), 4).expect("fits");
    let some = Sampler { choice: Some(Inner { number: 1.5 }), ..Sampler::default() };
    let bytes = encoded(&some, 4).expect("fits");
    let (at, tail) = (2 + 8 + 8, [0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
    assert_eq!((none[at], bytes[at], &bytes[at + 1..at + 9]), (0xff, 1, &tail[..]));
    assert_eq!(Sampler::decode(&mut decoder(&bytes), 4), Ok(some));
}

#[test]
fn versions_that_do_not_exist_are_refused_in_both_directions() {
    for version in [-1, 5] {
        let message = "Sampler";
        let decoded = Sampler::decode(&mut decoder(&[0; 64]), version);
        assert_eq!(decoded, Err(DecodeError::UnknownVersion { message, version }));
        let error = encoded(&Sampler::default(), version).expect_err("no such version");
        assert_eq!(error, EncodeError::UnknownVersion { message, version });
    }
}

#[test]
fn strings_are_bounded_in_both_directions_in_all_versions() {
    let long = Sampler { text: "x".repeat(32768), ..Sampler::default() };
    for version in 0..=4 {
        let too_long = EncodeError::TooLong { what: "string", len: 32768 };
        assert_eq!(encoded(&long, version), Err(too_long));
    }
    let most = Sampler { text: "x".repeat(32767), ..Sampler::default() };
    assert_eq!(encoded(&most, 2).expect("fits").len(), 3 + 32767 + 2);
    let mut bytes = vec![0x81, 0x80, 0x02];
    bytes.resize(3 + 32770, b'x');
    assert_eq!(malformed(Sampler::decode(&mut decoder(&bytes), 2)), "string is too long");
}

#[test]
fn external_records_leave_a_hole_and_only_their_length() {
    let data = RecordData::External { len: 1000, id: 9 };
    let message = Sampler { data, ..Sampler::default() };
    let mut e = Encoder::new();
    message.encode(&mut e, 4).expect("fits");
    assert_eq!(e.hole_bytes(), 1000);
    let (bytes, holes) = e.finish();
    // The hole comes after the compact length (1001) and before the count of tagged fields.
    assert_eq!(holes, [Hole { at: bytes.len() - 1, len: 1000, id: 9 }]);
    assert_eq!(&bytes[bytes.len() - 3..], [0xe9, 0x07, 0]);
    let mut filled = bytes.to_vec();
    filled.splice(holes[0].at..holes[0].at, vec![7; 1000]);
    let decoded = Sampler::decode(&mut decoder(&filled), 4).expect("reads");
    assert_eq!(decoded.data, RecordData::Bytes(Bytes::from(vec![7; 1000])));
}

#[test]
fn byte_fields_are_slices_of_the_frame() {
    let frame = Bytes::from_static(b"\0\0\0\x03abc");
    let bytes = Decoder::new(frame.slice(4..)).bytes(3).expect("three");
    assert_eq!(bytes.as_ptr(), frame[4..].as_ptr());
    let mut d = Decoder::new(frame);
    assert_eq!(d.i32(), Ok(3));
    assert_eq!((d.position(), d.remaining()), (4, 3));
    assert_eq!(malformed(d.bytes(4)), "ends early");
}
