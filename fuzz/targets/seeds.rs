//! Writes a short corpus to start from: one small valid input per API and version, and per codec.
//!
//! Usage: seeds CORPUS_DIRECTORY

use std::fs;
use std::path::Path;

use bytes::Bytes;
use duramen_protocol::api::API_TABLE;
use duramen_protocol::compression::Codec;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::Decoder;
use duramen_protocol::{Request, RequestHeader, Response, encode_request, encode_response};
// The instrumentation needs libFuzzer's symbols in every program.
use libfuzzer_sys as _;

/// Zeros decode as the emptiest message of most APIs; ones give flexible versions something to hold.
const BODIES: [[u8; 256]; 2] = [[0; 256], [1; 256]];

fn main() {
    let corpus = std::env::args_os().nth(1).expect("usage: seeds CORPUS_DIRECTORY");
    let corpus = Path::new(&corpus);
    for api in API_TABLE {
        for version in api.accepted.first..=api.accepted.last {
            for body in &BODIES {
                let name = format!("{}-{version}-{}", api.name, body[0]);
                let mut d = Decoder::new(Bytes::copy_from_slice(body));
                if let Ok(request) = Request::decode(&mut d, api.key, version) {
                    let api_key = api.key.code();
                    let header =
                        RequestHeader { api_key, api_version: version, ..Default::default() };
                    let frame = encode_request(&header, &request).expect("was decoded");
                    write(corpus, "request_decoder", &name, &frame.bytes[4..]);
                }
                let mut d = Decoder::new(Bytes::copy_from_slice(body));
                if let Ok(response) = Response::decode(&mut d, api.key, version) {
                    let frame = encode_response(1, &response, version).expect("was decoded");
                    let choice = [api.key.code().to_be_bytes()[1], version.to_be_bytes()[1]];
                    let input = [&choice[..], &frame.bytes[4..]].concat();
                    write(corpus, "response_decoder", &name, &input);
                }
            }
        }
    }
    for codec in Codec::ALL {
        write(corpus, "batch_reader", codec.name(), &batch(codec));
        let twice = batch(codec).repeat(2);
        write(corpus, "batch_reader", &format!("{}-twice", codec.name()), &twice);
    }
}

fn batch(codec: Codec) -> Vec<u8> {
    let mut builder = BatchBuilder::new().codec(codec).producer(7, 1, 0);
    for timestamp in 0..4 {
        let headers = &[("name", Some(&b"value"[..])), ("none", None)];
        let record =
            NewRecord { timestamp, key: Some(b"key"), value: Some(b"value value value"), headers };
        builder.push(&record).expect("small");
    }
    builder.build().expect("small").to_vec()
}

fn write(corpus: &Path, target: &str, name: &str, input: &[u8]) {
    let directory = corpus.join(target);
    fs::create_dir_all(&directory).expect("the corpus can be written");
    fs::write(directory.join(name), input).expect("the corpus can be written");
}
