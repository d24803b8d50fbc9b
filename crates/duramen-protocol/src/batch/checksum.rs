//! CRC32C carried over bytes that are not read.
//!
//! A CRC is a polynomial over GF(2), and a byte that follows multiplies it by x⁸ modulo the generator. The library's
//! own combination squares matrices, which takes longer than reading a megabyte; powers from a table take a
//! microsecond.

/// The generator of CRC32C with its bits reversed, as in all code that takes the lowest bit first.
const GENERATOR: u32 = 0x82f6_3b78;

/// x⁰: the highest bit, reversed as above.
const ONE: u32 = 1 << 31;

/// x to the power of 2ᵏ, at place k. A batch is shorter than 2³¹ bytes, thus 2³⁴ bits.
const POWERS: [u32; 34] = {
    let mut powers = [ONE >> 1; 34];
    let mut k = 1;
    while k < powers.len() {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// Returns the product of two polynomials modulo the generator.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 0 { b >> 1 } else { b >> 1 ^ GENERATOR };
        bit >>= 1;
    }
    product
}

/// Returns the share of `crc` in the checksum of the same bytes with `bytes` more bytes behind them.
pub(super) fn shift(mut crc: u32, bytes: usize) -> u32 {
    assert!(bytes < 1 << 31, "a batch is shorter than 2 GiB");
    // Bit 0 of the length stands for 8 = 2³ bits.
    for (place, power) in POWERS[3..].iter().enumerate() {
        if bytes >> place & 1 == 1 {
            crc = multiply(*power, crc);
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::shift;

    #[test]
    fn a_checksum_is_carried_over_any_length() {
        let zeros = vec![0u8; 100_000];
        for len in [0, 1, 2, 3, 61, 255, 256, 65_535, 65_536, 99_999] {
            let carried = shift(crc32c::crc32c(b"head"), len) ^ crc32c::crc32c(&zeros[..len]);
            let whole = crc32c::crc32c(&[&b"head"[..], &zeros[..len]].concat());
            assert_eq!(carried, whole, "{len}");
        }
        // The longest batch, against the slow way.
        let len = (1 << 31) - 1;
        assert_eq!(shift(0xdead_beef, len), crc32c::crc32c_combine(0xdead_beef, 0, len));
    }
}
