//! Writes the code of messages and services, and the descriptors that reflection serves.

use std::path::Path;

use prost::Message;

fn main() {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = protos.join("../src/proto");
    let descriptors = protox::compile(["duramen/v1/duramen.proto"], [&protos]).expect("the file compiles");
    std::fs::create_dir_all(&out).expect("the directory is ours");
    std::fs::write(out.join("duramen.v1.bin"), descriptors.encode_to_vec()).expect("the file is ours");
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(&out)
        .compile_fds(descriptors)
        .expect("the code can be written");
}
