//! The example of a configuration file, with the settings from the broker's table.

use std::fmt::Write;

use duramen_broker::configs::{BROKER_CONFIGS, Effect, Kind};

/// The keys, each at its default. They end where the settings begin.
const KEYS: &str = include_str!("example.toml");

/// Writes the file: its keys, and then the settings that do something, commented out.
pub(super) fn render() -> String {
    let mut text = String::from(KEYS);
    for key in BROKER_CONFIGS.iter().filter(|key| key.effect != Effect::None) {
        text.push('\n');
        for comment in filled(key.doc) {
            writeln!(text, "# {comment}").expect("a string takes all");
        }
        let is_plain = matches!(key.kind, Kind::Boolean | Kind::Int | Kind::Long | Kind::Double);
        let quote = if is_plain { "" } else { "\"" };
        // A name in quotes may go on in another's, as max.connections.per.ip does in that of its overrides.
        writeln!(text, "# \"{}\" = {quote}{}{quote}", key.name, key.default)
            .expect("a string takes all");
    }
    text
}

/// Lines of a comment that are not too long to be read.
fn filled(text: &str) -> Vec<String> {
    const COLUMNS_MAX: usize = 96;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= COLUMNS_MAX {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
