//! Positions in text: term, entry and offset with dots between them.

use std::fmt;
use std::str::FromStr;

use super::Position;

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, entry, offset } = self;
        write!(f, "{term}.{entry}.{offset}")
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a position is like 7.4711.4713: term, entry and offset".to_owned();
        let mut parts = text.split('.');
        let mut number = || parts.next()?.parse::<i64>().ok();
        let (term, entry, offset) = (number(), number(), number());
        let term = term.and_then(|it| i32::try_from(it).ok());
        match (term, entry, offset, parts.next()) {
            (Some(term @ 0..), Some(entry @ -1..), Some(offset @ 0..), None) => {
                Ok(Self { term, entry, offset })
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_their_text_and_nothing_else_is_one() {
        for (term, entry, offset) in [(7, 4711, 4713), (0, 0, 0), (3, -1, i64::MAX)] {
            let position = Position { term, entry, offset };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        let wrong = ["", "1", "1.2", "1.2.3.4", "-1.2.3", "1.2.-3", "a.b.c", "1..3", "1.-2.3"];
        for text in wrong.into_iter().chain(["1.2.9223372036854775808", "2147483648.0.0"]) {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
