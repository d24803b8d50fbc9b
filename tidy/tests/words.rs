//! Comments say who does what, in short sentences. Those that do not yet are counted, and the numbers may only shrink.

use std::collections::BTreeMap;

use duramen_tidy::{comments, root, sentences, sources};

/// Most words of a sentence.
const WORDS_MAX: usize = 25;
/// Most columns of a line that is a comment.
const COLUMNS_MAX: usize = 120;
/// Words that begin a comment whose actor is not named, or is the subject of another sentence.
const OPENERS: [&str; 9] =
    ["What", "How", "Whether", "Who", "Whose", "Whom", "Whoever", "It", "They"];

/// Faults of a package.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Comments that begin with one of [`OPENERS`].
    openers: usize,
    /// Sentences of more than [`WORDS_MAX`] words.
    long: usize,
    /// Lines of more than [`COLUMNS_MAX`] columns.
    wide: usize,
}

const COUNTS: [(&str, Counts); 6] = [
    ("duramen", Counts { openers: 0, long: 0, wide: 0 }),
    ("duramen_broker", Counts { openers: 0, long: 0, wide: 0 }),
    ("duramen_client", Counts { openers: 0, long: 0, wide: 0 }),
    ("duramen_protocol", Counts { openers: 0, long: 0, wide: 0 }),
    ("duramen_sim", Counts { openers: 0, long: 0, wide: 0 }),
    ("duramen_storage", Counts { openers: 0, long: 0, wide: 0 }),
];

#[test]
fn comments_name_their_actor_in_short_sentences() {
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    for source in sources(&root()) {
        let path = source.path;
        let of_it = counts.entry(source.package).or_default();
        for comment in comments(&source.text) {
            let first = comment.split(' ').next().unwrap_or_default();
            if OPENERS.contains(&first) {
                println!("{path}: begins with {first}: {comment}");
                of_it.openers += 1;
            }
            for sentence in sentences(&comment) {
                if sentence.split_whitespace().count() > WORDS_MAX {
                    println!("{path}: too long: {sentence}");
                    of_it.long += 1;
                }
            }
        }
        let lines = source.text.lines().filter(|line| line.trim_start().starts_with("//"));
        for line in lines.filter(|line| line.chars().count() > COLUMNS_MAX) {
            println!("{path}: too wide: {line}");
            of_it.wide += 1;
        }
    }
    let expected = COUNTS.into_iter().map(|(package, counts)| (package.to_owned(), counts));
    assert_eq!(
        counts,
        expected.collect(),
        "write smaller numbers into COUNTS, or mend what is new"
    );
}
