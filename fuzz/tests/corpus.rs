//! Every fuzz target on the inputs that fuzzing begins with.

use std::fs;

#[test]
fn every_target_takes_every_input_that_fuzzing_begins_with() {
    let corpus = tempfile::tempdir().expect("a directory");
    duramen_fuzz::seeds::write_all(corpus.path());
    for (name, run) in duramen_fuzz::TARGETS {
        let inputs = fs::read_dir(corpus.path().join(name)).expect("each target has inputs");
        let inputs: Vec<_> = inputs.map(|input| input.expect("it can be listed").path()).collect();
        assert!(!inputs.is_empty(), "{name} has no input");
        for input in inputs {
            println!("{}", input.display());
            run(&fs::read(&input).expect("it can be read"));
        }
    }
}
