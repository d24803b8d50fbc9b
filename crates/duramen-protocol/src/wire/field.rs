//! Field types: the encoding of each, and the versions in which a field is present.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use smol_str::SmolStr;

use super::{DecodeError, Decoder, EncodeError, Encoder, RecordData, Uuid};

/// Decoding n bytes allocates at most this times n. Room is made once, for as many elements as the bytes left could
/// hold. The worst element is a topic without partitions in an answer to `Produce`: three bytes on the wire, 136 in
/// memory. Arrays inside one another add to that. Tests measure it.
pub const ALLOCATION_FACTOR: usize = 64;

/// Kafka refuses longer strings even where the length prefix could say more.
pub const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// A range of message versions, both ends included. Empty if `last < first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// First version.
    pub first: i16,
    /// Last version.
    pub last: i16,
}

impl Versions {
    /// No version at all.
    pub const NONE: Self = Self { first: 0, last: -1 };

    /// Returns the range from `first` on, without an end.
    pub const fn from(first: i16) -> Self {
        Self { first, last: i16::MAX }
    }

    /// Returns the range from `first` to `last`, both included.
    pub const fn between(first: i16, last: i16) -> Self {
        Self { first, last }
    }

    /// Tells whether `version` is in the range.
    pub const fn contains(self, version: i16) -> bool {
        self.first <= version && version <= self.last
    }

    /// Tells whether there is no version in the range.
    pub const fn is_empty(self) -> bool {
        self.last < self.first
    }
}

/// Where in the versions of a message one field exists, and how. Built by the `message!` macro.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldSpec {
    versions: Versions,
    nullable: Versions,
    tagged: Versions,
    tag: u32,
    ignorable: bool,
}

impl FieldSpec {
    /// Describes a field that is present, not nullable and not tagged in `versions`.
    pub const fn new(versions: Versions) -> Self {
        let none = Versions::NONE;
        Self { versions, nullable: none, tagged: none, tag: 0, ignorable: false }
    }

    /// Makes the field nullable in `versions`.
    #[must_use]
    pub const fn nullable(mut self, versions: Versions) -> Self {
        self.nullable = versions;
        self
    }

    /// Travels as tagged field `tag` in `versions`.
    #[must_use]
    pub const fn tagged(mut self, tag: u32, versions: Versions) -> Self {
        self.tag = tag;
        self.tagged = versions;
        self
    }

    /// Lets a version that cannot carry the field drop it silently.
    #[must_use]
    pub const fn ignorable(mut self) -> Self {
        self.ignorable = true;
        self
    }

    /// Tells whether the field stands in the body, in its declared place.
    pub const fn in_body(&self, version: i16) -> bool {
        self.versions.contains(version) && !self.tagged.contains(version)
    }

    /// Tells whether the field travels as a tagged field.
    pub const fn in_tags(&self, version: i16) -> bool {
        self.versions.contains(version) && self.tagged.contains(version)
    }

    /// Tells whether the field may be null.
    pub const fn is_nullable(&self, version: i16) -> bool {
        self.nullable.contains(version)
    }

    /// Tells whether the field may be dropped silently.
    pub const fn is_ignorable(&self) -> bool {
        self.ignorable
    }

    /// Returns the tag; meaningful only where [`FieldSpec::in_tags`].
    pub const fn tag(&self) -> u32 {
        self.tag
    }

    /// Returns one past the tag if the field is ever tagged, else 0.
    pub const fn tag_end(&self) -> u32 {
        if self.tagged.is_empty() { 0 } else { self.tag + 1 }
    }
}

/// Context of a field: facts about the message around it.
#[derive(Debug, Clone, Copy)]
pub struct Ctx {
    /// The message's version.
    pub version: i16,
    /// True if this version has compact lengths and tagged fields.
    pub flexible: bool,
    /// True if this field may be null.
    pub nullable: bool,
}

impl Ctx {
    /// Returns the context of the same message, for a field whose nullability is given.
    #[must_use]
    pub const fn with_nullable(self, nullable: bool) -> Self {
        Self { nullable, ..self }
    }
}

/// An array that mostly has one element, which then takes no allocation.
pub type Few<T> = SmallVec<[T; 1]>;

/// A type that can be a field.
pub trait Wire: Sized {
    /// Returns the fewest bytes any value takes; at least 1, so that array lengths can be checked against it.
    fn bytes_min(ctx: Ctx) -> usize;
    /// Reads a value.
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError>;
    /// Writes the value.
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError>;
}

/// A type whose absence has an encoding of its own; `Option` of it is a field.
pub trait Nullable: Wire {
    /// Reads a value or null.
    fn read_nullable(d: &mut Decoder, ctx: Ctx) -> Result<Option<Self>, DecodeError>;
    /// Writes null.
    fn write_null(e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError>;
    /// Writes a value where null would have been possible.
    fn write_present(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        self.write(e, ctx)
    }
}

/// A top-level message: request, response, or a versioned record of our own. Implemented by `message!`.
pub trait Message: Wire + Default + Clone + PartialEq + std::fmt::Debug {
    /// The struct's name.
    const NAME: &'static str;
    /// The versions that exist.
    const VERSIONS: Versions;
    /// Those of them with compact lengths and tagged fields.
    const FLEXIBLE: Versions;

    /// Reads the message; leaves what follows it unread.
    fn decode(d: &mut Decoder, version: i16) -> Result<Self, DecodeError> {
        if !Self::VERSIONS.contains(version) {
            return Err(DecodeError::UnknownVersion { message: Self::NAME, version });
        }
        Self::read(d, Self::ctx(version))
    }

    /// Writes the message.
    fn encode(&self, e: &mut Encoder, version: i16) -> Result<(), EncodeError> {
        if !Self::VERSIONS.contains(version) {
            return Err(EncodeError::UnknownVersion { message: Self::NAME, version });
        }
        self.write(e, Self::ctx(version))
    }

    /// Returns the context of the message's outermost fields.
    fn ctx(version: i16) -> Ctx {
        Ctx { version, flexible: Self::FLEXIBLE.contains(version), nullable: false }
    }
}

macro_rules! fixed_width {
    ($($ty:ty, $method:ident, $bytes:literal;)*) => {$(
        impl Wire for $ty {
            fn bytes_min(_: Ctx) -> usize {
                $bytes
            }
            fn read(d: &mut Decoder, _: Ctx) -> Result<Self, DecodeError> {
                d.$method()
            }
            fn write(&self, e: &mut Encoder, _: Ctx) -> Result<(), EncodeError> {
                e.$method(*self);
                Ok(())
            }
        }
    )*};
}

fixed_width! {
    bool, bool, 1;
    i8, i8, 1;
    i16, i16, 2;
    u16, u16, 2;
    i32, i32, 4;
    u32, u32, 4;
    i64, i64, 8;
    u64, u64, 8;
    f64, f64, 8;
    Uuid, uuid, 16;
}

fn null_error(d: &Decoder) -> DecodeError {
    d.malformed("null where the field must be present")
}

fn read_str<T>(
    d: &mut Decoder,
    ctx: Ctx,
    own: impl FnOnce(&str) -> T,
) -> Result<Option<T>, DecodeError> {
    let Some(len) = d.length(ctx.flexible, true)? else { return Ok(None) };
    if len > STRING_BYTES_MAX {
        return Err(d.malformed("string is too long"));
    }
    match std::str::from_utf8(d.take(len)?) {
        Ok(text) => Ok(Some(own(text))),
        Err(_) => Err(d.malformed("string is not UTF-8")),
    }
}

fn write_str(text: &str, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
    if text.len() > STRING_BYTES_MAX {
        return Err(EncodeError::TooLong { what: "string", len: text.len() });
    }
    e.length(Some(text.len()), ctx.flexible, true, "string")?;
    e.put(text.as_bytes());
    Ok(())
}

impl Wire for String {
    fn bytes_min(ctx: Ctx) -> usize {
        if ctx.flexible { 1 } else { 2 }
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        Self::read_nullable(d, ctx)?.ok_or_else(|| null_error(d))
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        write_str(self, e, ctx)
    }
}

impl Nullable for String {
    fn read_nullable(d: &mut Decoder, ctx: Ctx) -> Result<Option<Self>, DecodeError> {
        read_str(d, ctx, str::to_owned)
    }
    fn write_null(e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        e.length(None, ctx.flexible, true, "string")
    }
}

/// For names of requests that come often: short ones take no allocation.
impl Wire for SmolStr {
    fn bytes_min(ctx: Ctx) -> usize {
        String::bytes_min(ctx)
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        Self::read_nullable(d, ctx)?.ok_or_else(|| null_error(d))
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        write_str(self, e, ctx)
    }
}

impl Nullable for SmolStr {
    fn read_nullable(d: &mut Decoder, ctx: Ctx) -> Result<Option<Self>, DecodeError> {
        read_str(d, ctx, |text| Self::new(text))
    }
    fn write_null(e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        String::write_null(e, ctx)
    }
}

/// For names that many messages share.
impl Wire for Arc<str> {
    fn bytes_min(ctx: Ctx) -> usize {
        String::bytes_min(ctx)
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        String::read(d, ctx).map(Self::from)
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        write_str(self, e, ctx)
    }
}

impl Nullable for Arc<str> {
    fn read_nullable(d: &mut Decoder, ctx: Ctx) -> Result<Option<Self>, DecodeError> {
        Ok(String::read_nullable(d, ctx)?.map(Self::from))
    }
    fn write_null(e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        String::write_null(e, ctx)
    }
}

impl Wire for Bytes {
    fn bytes_min(ctx: Ctx) -> usize {
        if ctx.flexible { 1 } else { 4 }
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        Self::read_nullable(d, ctx)?.ok_or_else(|| null_error(d))
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        e.length(Some(self.len()), ctx.flexible, false, "bytes")?;
        e.put(self);
        Ok(())
    }
}

impl Nullable for Bytes {
    fn read_nullable(d: &mut Decoder, ctx: Ctx) -> Result<Option<Self>, DecodeError> {
        match d.length(ctx.flexible, false)? {
            None => Ok(None),
            Some(len) => d.bytes(len).map(Some),
        }
    }
    fn write_null(e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        e.length(None, ctx.flexible, false, "bytes")
    }
}

impl Wire for RecordData {
    fn bytes_min(ctx: Ctx) -> usize {
        Bytes::bytes_min(ctx)
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        Bytes::read(d, ctx).map(Self::Bytes)
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        match self {
            Self::Bytes(bytes) => bytes.write(e, ctx),
            Self::External { len, id } => {
                e.length(Some(*len as usize), ctx.flexible, false, "records")?;
                e.hole(*len, *id);
                Ok(())
            }
        }
    }
}

impl Nullable for RecordData {
    fn read_nullable(d: &mut Decoder, ctx: Ctx) -> Result<Option<Self>, DecodeError> {
        Ok(Bytes::read_nullable(d, ctx)?.map(Self::Bytes))
    }
    fn write_null(e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        Bytes::write_null(e, ctx)
    }
}

/// Reads the length of an array, and claims its elements.
fn read_len<T: Wire>(d: &mut Decoder, ctx: Ctx) -> Result<Option<usize>, DecodeError> {
    let Some(len) = d.length(ctx.flexible, false)? else { return Ok(None) };
    // The claim is checked against what is really there before any room is made for it.
    let needed = len.checked_mul(T::bytes_min(ctx.with_nullable(false)).max(1));
    if needed.is_none_or(|needed| needed > d.remaining()) {
        return Err(d.malformed("array is longer than its frame"));
    }
    d.expect_elements(len)?;
    Ok(Some(len))
}

fn write_array<T: Wire>(elements: &[T], e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
    e.length(Some(elements.len()), ctx.flexible, false, "array")?;
    let ctx = ctx.with_nullable(false);
    elements.iter().try_for_each(|element| element.write(e, ctx))
}

impl<T: Wire> Wire for Vec<T> {
    fn bytes_min(ctx: Ctx) -> usize {
        if ctx.flexible { 1 } else { 4 }
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        Self::read_nullable(d, ctx)?.ok_or_else(|| null_error(d))
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        write_array(self, e, ctx)
    }
}

impl<T: Wire> Nullable for Vec<T> {
    fn read_nullable(d: &mut Decoder, ctx: Ctx) -> Result<Option<Self>, DecodeError> {
        let Some(len) = read_len::<T>(d, ctx)? else { return Ok(None) };
        let mut elements = Self::with_capacity(len);
        for _ in 0..len {
            elements.push(T::read(d, ctx.with_nullable(false))?);
        }
        Ok(Some(elements))
    }
    fn write_null(e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        e.length(None, ctx.flexible, false, "array")
    }
}

impl<T: Wire> Wire for Few<T> {
    fn bytes_min(ctx: Ctx) -> usize {
        Vec::<T>::bytes_min(ctx)
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        let len = read_len::<T>(d, ctx)?.ok_or_else(|| null_error(d))?;
        let mut elements = Self::with_capacity(len);
        for _ in 0..len {
            elements.push(T::read(d, ctx.with_nullable(false))?);
        }
        Ok(elements)
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        write_array(self, e, ctx)
    }
}

impl<T: Nullable> Wire for Option<T> {
    fn bytes_min(ctx: Ctx) -> usize {
        // A null struct is one byte, and null takes no more room than an empty value elsewhere.
        if ctx.nullable { 1 } else { T::bytes_min(ctx) }
    }
    fn read(d: &mut Decoder, ctx: Ctx) -> Result<Self, DecodeError> {
        if ctx.nullable { T::read_nullable(d, ctx) } else { T::read(d, ctx).map(Some) }
    }
    fn write(&self, e: &mut Encoder, ctx: Ctx) -> Result<(), EncodeError> {
        match self {
            Some(value) if ctx.nullable => value.write_present(e, ctx),
            Some(value) => value.write(e, ctx),
            None if ctx.nullable => T::write_null(e, ctx),
            None => Err(EncodeError::Null { version: ctx.version }),
        }
    }
}

/// Reads a struct that may be null: one byte, negative for null, then the struct.
pub fn read_nullable_struct<T: Wire>(d: &mut Decoder, ctx: Ctx) -> Result<Option<T>, DecodeError> {
    if d.i8()? < 0 { Ok(None) } else { T::read(d, ctx.with_nullable(false)).map(Some) }
}

/// Writes a struct where null would have been possible, or null.
pub fn write_nullable_struct<T: Wire>(
    value: Option<&T>,
    e: &mut Encoder,
    ctx: Ctx,
) -> Result<(), EncodeError> {
    e.i8(if value.is_some() { 1 } else { -1 });
    value.map_or(Ok(()), |value| value.write(e, ctx.with_nullable(false)))
}
