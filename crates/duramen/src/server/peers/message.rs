//! Kinds of messages between nodes.

/// Kind of a message between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Greeting = 1,
    Frame = 2,
    /// Goes both ways on a connection.
    Notice = 3,
    /// Has calls of the native API follow, as HTTP/2, once the other node has answered with the same.
    Calls = 4,
}

impl Kind {
    /// Returns the kind of a message by its first byte.
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::Greeting, Self::Frame, Self::Notice, Self::Calls]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}
