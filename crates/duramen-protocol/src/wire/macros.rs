//! The declarative table of messages.

/// Declares versioned messages, each once: fields in wire order, with the versions they exist in.
///
/// ```
/// use duramen_protocol::wire::{Decoder, Encoder, Message};
///
/// duramen_protocol::message! {
///     /// A record of some log of ours.
///     pub struct Placement: versions 0..=2, flexible 0.. {
///         node: i32 [0..],
///         rack: Option<String> [1.., nullable 1.., ignorable],
///         weight: i64 [2.., tag 0 in 2..] = 100,
///         replicas: Vec<PlacementReplica> [0..],
///     }
///     /// One replica in a [`Placement`].
///     pub struct PlacementReplica {
///         peer: u64 [0..],
///     }
/// }
///
/// let placement = Placement { node: 7, ..Placement::default() };
/// let mut e = Encoder::new();
/// placement.encode(&mut e, 2).unwrap();
/// let mut d = Decoder::new(e.into_bytes().freeze());
/// assert_eq!(Placement::decode(&mut d, 2).unwrap(), placement);
/// ```
///
/// A field is `name: Type [versions, modifiers] = default`. Modifiers stand in any order. `nullable 3..` makes the
/// type an `Option`. `tag 0 in 3..` makes the field a tagged field. `ignorable` lets a version that cannot carry the
/// field drop it silently. Without `ignorable`, encoding a value that is not the default fails. A struct with
/// `versions` is a [`Message`](crate::wire::Message). A struct without belongs to the message that contains it, and
/// shares its versions. The decoder skips unknown tagged fields.
#[macro_export]
macro_rules! message {
    ($(
        $(#[$doc:meta])*
        $vis:vis struct $name:ident
        $(: versions $first:literal ..= $last:literal, flexible $($flexible:literal ..)? $($never:ident)? )?
        {
            $( $(#[$field_doc:meta])* $field:ident: $ty:ty [$($spec:tt)*] $(= $default:expr)? ),* $(,)?
        }
    )+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $(
                $(#[$field_doc])*
                #[doc = concat!("Versions: `", stringify!($($spec)*), "`.")]
                $vis $field: $ty,
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $crate::message!(@default $ty $(, $default)?), )* }
            }
        }

        impl $crate::wire::Wire for $name {
            fn bytes_min(ctx: $crate::wire::Ctx) -> usize {
                let mut bytes = usize::from(ctx.flexible);
                $({
                    const SPEC: $crate::wire::FieldSpec = $crate::message!(@spec $($spec)*);
                    if SPEC.in_body(ctx.version) {
                        let ctx = ctx.with_nullable(SPEC.is_nullable(ctx.version));
                        bytes += <$ty as $crate::wire::Wire>::bytes_min(ctx);
                    }
                })*
                bytes.max(1)
            }

            fn read(
                d: &mut $crate::wire::Decoder,
                ctx: $crate::wire::Ctx,
            ) -> Result<Self, $crate::wire::DecodeError> {
                let mut message = Self::default();
                $({
                    const SPEC: $crate::wire::FieldSpec = $crate::message!(@spec $($spec)*);
                    if SPEC.in_body(ctx.version) {
                        let ctx = ctx.with_nullable(SPEC.is_nullable(ctx.version));
                        message.$field = $crate::wire::Wire::read(d, ctx)?;
                    }
                })*
                if ctx.flexible {
                    for _ in 0..d.unsigned_varint()? {
                        let tag = d.unsigned_varint()?;
                        $({
                            const SPEC: $crate::wire::FieldSpec = $crate::message!(@spec $($spec)*);
                            if SPEC.in_tags(ctx.version) && SPEC.tag() == tag {
                                let ctx = ctx.with_nullable(SPEC.is_nullable(ctx.version));
                                let size = d.unsigned_varint()? as usize;
                                message.$field =
                                    d.confined(size, |d| $crate::wire::Wire::read(d, ctx))?;
                                continue;
                            }
                        })*
                        d.skip_tagged_field()?;
                    }
                }
                Ok(message)
            }

            fn write(
                &self,
                e: &mut $crate::wire::Encoder,
                ctx: $crate::wire::Ctx,
            ) -> Result<(), $crate::wire::EncodeError> {
                let mut tags = 0u32;
                $({
                    const SPEC: $crate::wire::FieldSpec = $crate::message!(@spec $($spec)*);
                    if SPEC.in_body(ctx.version) {
                        let ctx = ctx.with_nullable(SPEC.is_nullable(ctx.version));
                        $crate::wire::Wire::write(&self.$field, e, ctx)?;
                    } else if SPEC.in_tags(ctx.version) || !SPEC.is_ignorable() {
                        let default: $ty = $crate::message!(@default $ty $(, $default)?);
                        if PartialEq::ne(&self.$field, &default) {
                            if !SPEC.in_tags(ctx.version) {
                                return Err($crate::wire::EncodeError::Inexpressible {
                                    message: stringify!($name),
                                    field: stringify!($field),
                                    version: ctx.version,
                                });
                            }
                            tags += 1;
                        }
                    }
                })*
                if ctx.flexible {
                    e.unsigned_varint(tags);
                }
                if tags > 0 {
                    const TAG_END: u32 = {
                        let mut end = 0;
                        $({
                            const SPEC: $crate::wire::FieldSpec = $crate::message!(@spec $($spec)*);
                            if SPEC.tag_end() > end {
                                end = SPEC.tag_end();
                            }
                        })*
                        end
                    };
                    // Ascending by tag, which need not be the order of declaration.
                    let mut tag = 0;
                    while tag < TAG_END {
                        $({
                            const SPEC: $crate::wire::FieldSpec = $crate::message!(@spec $($spec)*);
                            if SPEC.in_tags(ctx.version) && SPEC.tag() == tag {
                                let default: $ty = $crate::message!(@default $ty $(, $default)?);
                                if PartialEq::ne(&self.$field, &default) {
                                    let ctx = ctx.with_nullable(SPEC.is_nullable(ctx.version));
                                    e.tagged_field(tag, |e| {
                                        $crate::wire::Wire::write(&self.$field, e, ctx)
                                    })?;
                                }
                            }
                        })*
                        tag += 1;
                    }
                }
                Ok(())
            }
        }

        impl $crate::wire::Nullable for $name {
            fn read_nullable(
                d: &mut $crate::wire::Decoder,
                ctx: $crate::wire::Ctx,
            ) -> Result<Option<Self>, $crate::wire::DecodeError> {
                $crate::wire::read_nullable_struct(d, ctx)
            }
            fn write_null(
                e: &mut $crate::wire::Encoder,
                ctx: $crate::wire::Ctx,
            ) -> Result<(), $crate::wire::EncodeError> {
                $crate::wire::write_nullable_struct::<Self>(None, e, ctx)
            }
            fn write_present(
                &self,
                e: &mut $crate::wire::Encoder,
                ctx: $crate::wire::Ctx,
            ) -> Result<(), $crate::wire::EncodeError> {
                $crate::wire::write_nullable_struct(Some(self), e, ctx)
            }
        }

        $(
            impl $crate::wire::Message for $name {
                const NAME: &'static str = stringify!($name);
                const VERSIONS: $crate::wire::Versions =
                    $crate::wire::Versions::between($first, $last);
                const FLEXIBLE: $crate::wire::Versions =
                    $crate::message!(@flexible $($flexible)?);
            }
        )?
    )+};

    (@default $ty:ty) => { <$ty as Default>::default() };
    (@default $ty:ty, $default:expr) => { $default };

    (@flexible) => { $crate::wire::Versions::NONE };
    (@flexible $from:literal) => { $crate::wire::Versions::from($from) };

    (@spec $first:literal ..= $last:literal $(, $($more:tt)*)?) => {
        $crate::message!(
            @with $crate::wire::FieldSpec::new($crate::wire::Versions::between($first, $last));
            $($($more)*)?
        )
    };
    (@spec $first:literal .. $(, $($more:tt)*)?) => {
        $crate::message!(
            @with $crate::wire::FieldSpec::new($crate::wire::Versions::from($first));
            $($($more)*)?
        )
    };
    (@with $spec:expr;) => { $spec };
    (@with $spec:expr; ignorable $(, $($more:tt)*)?) => {
        $crate::message!(@with $spec.ignorable(); $($($more)*)?)
    };
    (@with $spec:expr; nullable $first:literal ..= $last:literal $(, $($more:tt)*)?) => {
        $crate::message!(
            @with $spec.nullable($crate::wire::Versions::between($first, $last));
            $($($more)*)?
        )
    };
    (@with $spec:expr; nullable $first:literal .. $(, $($more:tt)*)?) => {
        $crate::message!(
            @with $spec.nullable($crate::wire::Versions::from($first));
            $($($more)*)?
        )
    };
    (@with $spec:expr; tag $tag:literal in $first:literal .. $(, $($more:tt)*)?) => {
        $crate::message!(
            @with $spec.tagged($tag, $crate::wire::Versions::from($first));
            $($($more)*)?
        )
    };
}
