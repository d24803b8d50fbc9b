//! Kinds of messages between nodes.

/// Kind of a message between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Greeting = 1,
    Frame = 2,
    /// Goes both ways on a connection.
    Notice = 3,
}

impl Kind {
    /// Returns the kind of a message by its first byte.
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::Greeting, Self::Frame, Self::Notice].into_iter().find(|kind| *kind as u8 == byte)
    }
}
