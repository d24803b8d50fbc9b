//! Positions in text: term, entry and offset with dots between them.

use std::fmt;
use std::str::FromStr;

use duramen_broker::native;

use super::Position;

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, entry, offset } = *self;
        native::Position { term, entry, offset }.fmt(f)
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let native::Position { term, entry, offset } = text.parse()?;
        Ok(Self { term, entry, offset })
    }
}
