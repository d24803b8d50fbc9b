//! The codecs by number and name, and why bytes do not decompress.

/// A codec, by its number in the attributes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Codec {
    /// Records as they are.
    #[default]
    None,
    /// gzip, one or more members.
    Gzip,
    /// snappy, raw or in the framing of Java clients.
    Snappy,
    /// lz4 frame format.
    Lz4,
    /// zstd frames.
    Zstd,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// Returns the number in the attributes.
    pub const fn id(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// Returns the codec with this number.
    pub const fn from_id(id: i16) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the codec with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

/// Why bytes could not be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// The result would be longer than allowed.
    #[error("decompresses to more than {limit} bytes")]
    LimitExceeded {
        /// The limit.
        limit: usize,
    },
    /// The bytes are not what the codec writes.
    #[error("not valid {}", codec.name())]
    Corrupt {
        /// The codec.
        codec: Codec,
    },
    /// A zstd window that few clients read, and Java clients do not.
    #[error(
        "zstd window of {bytes} bytes; compress with a window log of at most 27, more is not read by Java clients"
    )]
    WindowTooLarge {
        /// Window that the frame declares, in bytes.
        bytes: u64,
    },
}
