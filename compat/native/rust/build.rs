//! Writes the client's code, and the descriptors that its JSON is read and written by.

use std::path::Path;

use prost::Message;

fn main() {
    // Asked when it runs: clones share what was built.
    let own = std::env::var("CARGO_MANIFEST_DIR").expect("cargo names it");
    let protos = Path::new(&own).join("../../../crates/duramen/proto");
    let file = protos.join("duramen/v1/duramen.proto");
    println!("cargo::rerun-if-changed={}", file.display());
    println!("cargo::rerun-if-env-changed=DURAMEN_PROTOCOL");
    let descriptors = protox::compile(["duramen/v1/duramen.proto"], [&protos]).expect("the file compiles");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec()).expect("the directory is ours");
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors).expect("the code can be written");
}
