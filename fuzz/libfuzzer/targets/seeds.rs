//! Writes the inputs to begin with: `seeds CORPUS_DIRECTORY`.

use std::path::Path;

// The instrumentation needs libFuzzer's symbols in every program.
use libfuzzer_sys as _;

fn main() {
    let corpus = std::env::args_os().nth(1).expect("usage: seeds CORPUS_DIRECTORY");
    duramen_fuzz::seeds::write_all(Path::new(&corpus));
}
