//! Entries of ours: what removes or reshapes data, decided by the leader and executed from the
//! entry alone.

/// An internal entry. Kinds and versions are never reused; one that is unknown stops the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Internal {
    /// Offsets below are gone.
    Trim {
        /// The new log start.
        offset: i64,
    },
    /// Producers whose last batch begins before this offset are forgotten. It takes the same few bytes however many
    /// they are: such entries are remembered for as long as the log.
    ExpireProducers {
        /// The first that stays.
        before: i64,
    },
    /// These producers are forgotten: it is read from older logs, and not written any more.
    ExpireNamed {
        /// Who.
        ids: Vec<i64>,
    },
}

const TRIM: [u8; 2] = [1, 1];
const EXPIRE_NAMED: [u8; 2] = [2, 1];
const EXPIRE_PRODUCERS: [u8; 2] = [2, 2];

impl Internal {
    /// Kind, version of the kind, body.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Trim { offset } => [&TRIM[..], &offset.to_be_bytes()[..]].concat(),
            Self::ExpireProducers { before } => {
                [&EXPIRE_PRODUCERS[..], &before.to_be_bytes()[..]].concat()
            }
            Self::ExpireNamed { ids } => {
                let mut out = EXPIRE_NAMED.to_vec();
                for id in ids {
                    out.extend_from_slice(&id.to_be_bytes());
                }
                out
            }
        }
    }

    /// `None` for a kind or version that this build does not know.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, body) = bytes.split_first_chunk::<2>()?;
        match *kind {
            TRIM => {
                let offset = i64::from_be_bytes(body.try_into().ok()?);
                (offset >= 0).then_some(Self::Trim { offset })
            }
            EXPIRE_PRODUCERS => {
                let before = i64::from_be_bytes(body.try_into().ok()?);
                Some(Self::ExpireProducers { before })
            }
            EXPIRE_NAMED => {
                let (ids, rest) = body.as_chunks::<8>();
                let ids = ids.iter().map(|id| i64::from_be_bytes(*id)).collect();
                rest.is_empty().then_some(Self::ExpireNamed { ids })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_encoding_and_unknown_kinds_do_not_decode() {
        let named = Internal::ExpireNamed { ids: vec![1, -5, i64::MAX] };
        let expire = Internal::ExpireProducers { before: 9 };
        for entry in [Internal::Trim { offset: 77 }, named, expire] {
            assert_eq!(Internal::decode(&entry.encode()), Some(entry));
        }
        assert_eq!(Internal::decode(&[3, 1]), None);
        assert_eq!(Internal::decode(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Internal::decode(&[1]), None);
    }
}
