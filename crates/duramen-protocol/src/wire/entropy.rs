//! Random values of every declared type, for tests. A stream of bytes drives every choice. After the end of the
//! stream every choice is the smallest one, so shrinking the bytes shrinks the value.

use bytes::Bytes;
use smol_str::SmolStr;

use super::{Ctx, Few, RecordData, Uuid};

/// The stream.
pub(crate) struct Entropy<'a> {
    left: &'a [u8],
}

impl<'a> Entropy<'a> {
    pub(crate) fn new(left: &'a [u8]) -> Self {
        Self { left }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.left.split_first() else { return 0 };
        self.left = rest;
        first
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        // Small numbers and extremes matter as much as arbitrary ones.
        match self.byte() % 4 {
            0 => [0; N],
            1 => [0xff; N],
            2 => {
                let mut bytes = [0; N];
                bytes[N - 1] = self.byte();
                bytes
            }
            _ => std::array::from_fn(|_| self.byte()),
        }
    }

    fn len(&mut self) -> usize {
        usize::from(self.byte() % 4)
    }
}

/// A type of which tests can make values that a given version can express.
pub(crate) trait Sample: Sized {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self;
}

macro_rules! fixed_width {
    ($($ty:ty)*) => {$(
        impl Sample for $ty {
            fn sample(entropy: &mut Entropy<'_>, _: Ctx) -> Self {
                Self::from_be_bytes(entropy.array())
            }
        }
    )*};
}

fixed_width! { i8 i16 u16 i32 i64 }

/// Always equal to itself.
impl Sample for f64 {
    fn sample(entropy: &mut Entropy<'_>, _: Ctx) -> Self {
        f64::from(i32::from_be_bytes(entropy.array())) / 8.0
    }
}

impl Sample for bool {
    fn sample(entropy: &mut Entropy<'_>, _: Ctx) -> Self {
        entropy.byte() % 2 == 1
    }
}

impl Sample for Uuid {
    fn sample(entropy: &mut Entropy<'_>, _: Ctx) -> Self {
        Self(entropy.array())
    }
}

impl Sample for String {
    fn sample(entropy: &mut Entropy<'_>, _: Ctx) -> Self {
        // Lengths around 127 are where a compact length grows a byte.
        let len = match entropy.byte() % 8 {
            7 => 126 + entropy.len(),
            n => usize::from(n % 4),
        };
        (0..len).map(|_| char::from(b'a' + entropy.byte() % 26)).collect()
    }
}

impl Sample for SmolStr {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self {
        String::sample(entropy, ctx).into()
    }
}

impl Sample for Bytes {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self {
        String::sample(entropy, ctx).into_bytes().into()
    }
}

impl Sample for super::Secret {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self {
        Self(Bytes::sample(entropy, ctx))
    }
}

impl Sample for RecordData {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self {
        Self::Bytes(Bytes::sample(entropy, ctx))
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self {
        let ctx = ctx.with_nullable(false);
        (0..entropy.len()).map(|_| T::sample(entropy, ctx)).collect()
    }
}

impl<T: Sample> Sample for Few<T> {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self {
        Vec::sample(entropy, ctx).into()
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(entropy: &mut Entropy<'_>, ctx: Ctx) -> Self {
        let null = ctx.nullable && entropy.byte().is_multiple_of(4);
        (!null).then(|| T::sample(entropy, ctx.with_nullable(false)))
    }
}

/// Implements [`Sample`] for what `message!` declares, from the same declaration.
macro_rules! sampled {
    ($(
        $(#[$doc:meta])*
        $vis:vis struct $name:ident
        $(: versions $first:literal ..= $last:literal, flexible $($flexible:literal ..)? $($never:ident)? )?
        {
            $( $field:ident: $ty:ty [$($spec:tt)*] $(= $default:expr)? ),* $(,)?
        }
    )+) => {$(
        impl $crate::wire::entropy::Sample for $name {
            fn sample(
                entropy: &mut $crate::wire::entropy::Entropy<'_>,
                ctx: $crate::wire::Ctx,
            ) -> Self {
                let mut message = Self::default();
                $({
                    const SPEC: $crate::wire::FieldSpec = $crate::message!(@spec $($spec)*);
                    if SPEC.in_body(ctx.version) || SPEC.in_tags(ctx.version) {
                        let ctx = ctx.with_nullable(SPEC.is_nullable(ctx.version));
                        message.$field = $crate::wire::entropy::Sample::sample(entropy, ctx);
                    }
                })*
                message
            }
        }
    )+};
}
pub(crate) use sampled;
