//! # Room card: partitioner
//!
//! Purpose:    the partition of a key: the same as with Kafka's Java client.
//! Owns:       Kafka's murmur2.
//! Interface:  [`partition_of_key`], [`key_number`].
//! Invariants: the answer is a function of the key and the count of partitions alone.
//! Never:      keyless records; other partitioners.
//! Tests:      below.
//! Start at:   [`partition_of_key`].

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;
const R: u32 = 24;

/// Returns the partition of `key` among `partitions`, as the Java client's default partitioner chooses it.
/// Less than one partition counts as one.
pub fn partition_of_key(key: &[u8], partitions: i32) -> i32 {
    key_number(key) % partitions.max(1)
}

/// Returns the number whose remainder, divided by the count of partitions, is the partition of `key`.
pub fn key_number(key: &[u8]) -> i32 {
    (murmur2(key) & 0x7fff_ffff).cast_signed()
}

/// Computes Kafka's 32-bit murmur2.
fn murmur2(data: &[u8]) -> u32 {
    let length = u32::try_from(data.len()).expect("keys are shorter than 4 GiB");
    let mut hash = SEED ^ length;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().expect("four bytes"));
        k = k.wrapping_mul(M);
        k ^= k >> R;
        k = k.wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of `UtilsTest.testMurmur2` in Apache Kafka.
    #[test]
    fn hashes_are_those_of_the_java_client() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
    }

    #[test]
    fn partitions_are_within_range() {
        for n in 1..50 {
            assert!((0..n).contains(&partition_of_key(b"21", n)));
        }
    }
}
