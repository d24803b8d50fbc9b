//! # Room card: comments
//!
//! Purpose:    the sentences of comments.
//! Owns:       which lines are one comment, and where a sentence ends.
//! Interface:  [`comments`], [`sentences`].
//! Invariants: comments of tests count, those in texts of strings do not; code blocks, tables and headings are no sentences.
//! Never:      a judgement of a sentence: see `tests/words.rs`.
//! Tests:      below.
//! Start at:   [`comments`].

/// Splits a source into comments: lines that follow each other, up to a line that begins a list, or a label of a room card.
pub fn comments(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut is_open = false;
    let mut is_code = false;
    for line in text.lines() {
        let Some(words) = comment_of(line) else {
            is_open = false;
            continue;
        };
        if words.starts_with("```") {
            is_code = !is_code;
            is_open = false;
            continue;
        }
        if is_code || words.is_empty() || words.starts_with(['#', '|']) {
            is_open = false;
            continue;
        }
        let (words, begins) = match without_label(words) {
            Some(words) => (words, true),
            None => (words.trim_start_matches("- "), words.starts_with("- ")),
        };
        match found.last_mut() {
            Some(last) if is_open && !begins => {
                last.push(' ');
                last.push_str(words);
            }
            _ => found.push(words.to_owned()),
        }
        is_open = true;
    }
    found
}

/// The text of a line that is a comment and nothing else.
fn comment_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark))?;
    Some(text.trim())
}

/// What follows a label of a room card, such as `Purpose:`.
fn without_label(words: &str) -> Option<&str> {
    const LABELS: [&str; 7] =
        ["Purpose:", "Owns:", "Interface:", "Invariants:", "Never:", "Tests:", "Start at:"];
    LABELS.iter().find_map(|label| words.strip_prefix(label)).map(str::trim_start)
}

/// Splits a comment into sentences; a sentence ends with a full stop, a question mark or a semicolon before a space.
pub fn sentences(comment: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = comment;
    while let Some(at) = [". ", "? ", "; "].iter().filter_map(|end| rest.find(end)).min() {
        found.push(&rest[..=at]);
        rest = &rest[at + 2..];
    }
    found.push(rest);
    found.retain(|sentence| !sentence.trim().is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_end_with_code_labels_and_lists() {
        let text = "//! # Room card: x\n//!\n//! Purpose:    one\n//!             thing.\n//! Owns:       two.\n\
                    let a = \"// no\"; // no\n    // Three\n    // lines. And - more.\n/// - item\n/// - other\n\
                    //! ```\n//! code\n//! ```\n//! | a |\n";
        let expected = ["one thing.", "two.", "Three lines. And - more.", "item", "other"];
        assert_eq!(comments(text), expected);
    }

    #[test]
    fn sentences_end_with_a_stop_and_a_space() {
        let found = sentences("One of 2.5 parts. Two; and a half. `x.y`?");
        assert_eq!(found, ["One of 2.5 parts.", "Two;", "and a half.", "`x.y`?"]);
    }
}
