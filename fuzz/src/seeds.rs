//! Writes a short corpus to start from: one small valid input per API and version, per codec, per round of a kept
//! journal, and per kind of change to a data directory.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use duramen_protocol::api::API_TABLE;
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::sasl::{Mechanism, bearer, plain_token};
use duramen_protocol::wire::{Decoder, Secret};
use duramen_protocol::{Request, RequestHeader, Response, encode_request, encode_response};
use duramen_storage::journal::{Round, rounds_of};

use crate::tokens;

/// Zeros decode as the emptiest message of most APIs; ones give flexible versions something to hold.
const BODIES: [[u8; 256]; 2] = [[0; 256], [1; 256]];

const BODIES_IN_JSON: [&str; 14] = [
    "{}",
    "[]",
    r#"{"records":[{"key":"k","value":"v","headers":{"h":"v"},"timestamp_ms":1}]}"#,
    r#"{"records":[{"key_base64":"AP8=","json":{"a":[1, 2.50, null]}}, {"base64":"/w=="}],"timeout_ms":5}"#,
    r#"{"records":[{"timestamp_ms":-9223372036854775808},{"timestamp_ms":9223372036854775807}]}"#,
    r#"{"records":[{}],"guard":{"last":"7.4711.4713","fence":"f"},"session":{"id":7,"epoch":0,"sequence":2147483647}}"#,
    r#"{"messages":[{"value":"v"}],"guard":{"last":"none"},"session":{"id":7,"epoch":1}}"#,
    r#"{"messages":[{"queue":"alice","message":{"json":1}},{"queue_base64":"Ym9i","message":{}}]}"#,
    r#"{"cursors":[{"queue":"alice"},{"queue":"bob","after":"end"},{"queue_base64":"Yw==","after":"1.0.0"}],"as":"base64"}"#,
    r#"{"cursors":[{"queue":"alice"}],"filter":"true","fields":{"a":"size"},"bytes":4294967295,"skip_trimmed":true}"#,
    r#"{"through":"1.2.3","pointer":{"uri":"u","position":"1.-1.2","sha256":"","note":"n"},"fence":"f"}"#,
    r#"{"token":"t","if_token":"","timeout_ms":4294967295}"#,
    r#"{"partitions":3,"replication_factor":-1,"settings":{"queue.enable":"true"}}"#,
    r#"{"records":[{"json":"\u0000\ud83d\ude00 \" \\"}],"unknown":1}"#,
];

const NAME_RULES: [&str; 4] = [
    "DEFAULT",
    "RULE:CN=(.*?),OU=ops.*/$1/L,DEFAULT\0CN=Ada,OU=ops,O=Acme",
    "RULE:(.*)/$10\\$$x/U , RULE:a\\/b//\0a/b",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U\0OU=x,cn=ada.b,C=US",
];

const EXPRESSIONS: [&str; 24] = [
    "json.level == 'error'",
    "json.n > 6 && json.x < 8.5 || !(offset >= 0)",
    "'b' in json.tags",
    "json.tags.exists(it, it == 'a') ? size : timestamp",
    "json.tags.all(it, it.size() == 1)",
    "json.tags.exists_one(it, it == 'b')",
    "has(json.of.it) && !has(json.of.x)",
    "text.contains('error') && key_text.startsWith('al') && key_text.endsWith('ce')",
    "headers['kind'] == 'order'",
    "key == b'alice' && value != b'\\xff'",
    "string(json.n) + 'x' == '7x'",
    "int('12') + 9223372036854775807 == 12",
    "double('1e308') * 10.0 > 1.0 / 0.0",
    "-9223372036854775807 - 2",
    "size / 0 == size % 0",
    "[1, 2.5, 'a', null, {'k': [json]}]",
    "json",
    "{1: 'a', true: 'b', 'c': 1u}",
    "[text, text][1]",
    "json.tags.map(it, it)",
    "text.matches('a*')",
    "nothing == 1",
    "'\\u00e9' + r'raw' + \"\"\"long\"\"\"",
    "a ? b",
];

/// Writes every input to `corpus`, in one directory a target.
pub fn write_all(corpus: &Path) {
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
    let rounds = kept_rounds();
    for round in &rounds {
        let body = round.body.as_ref().expect("what is kept is whole");
        let name = format!("round-{}", round.header.lsn);
        write(corpus, "journal", &name, body);
        // The records alone, in a directory that is empty otherwise.
        write(corpus, "segment_recovery", &name, &[&[1], &body[..]].concat());
    }
    rings(corpus, &rounds);
    changes(corpus);
    native(corpus);
    logins(corpus);
}

/// Logins by each mechanism, in both forms of tokens, and rules of names.
fn logins(corpus: &Path) {
    let frame = |request: Request, api_version| {
        let api_key = request.api_key().code();
        let header = RequestHeader { api_key, api_version, ..RequestHeader::default() };
        let encoded = encode_request(&header, &request).expect("a good request");
        encoded.bytes.freeze().slice(4..)
    };
    let cut = |frames: &[Bytes]| {
        let of = |frame: &Bytes| {
            let len = u16::try_from(frame.len()).expect("short").to_be_bytes();
            [&len[..], frame].concat()
        };
        frames.iter().flat_map(of).collect::<Vec<u8>>()
    };
    for mechanism in Mechanism::ALL {
        let first = match mechanism {
            Mechanism::Plain => plain_token("ada", b"password"),
            Mechanism::Scram(_) => Bytes::from_static(b"n,,n=ada,r=nonce"),
            Mechanism::OAuthBearer => bearer::message("e30.e30.AA"),
        };
        let last = match mechanism {
            Mechanism::OAuthBearer => Bytes::from_static(b"\x01"),
            _ => Bytes::from_static(b"c=biws,r=noncebm9uY2U=,p=AAAA"),
        };
        for version in [0, 1] {
            let mechanism_name = mechanism.name().to_owned();
            let chosen = SaslHandshakeRequest { mechanism: mechanism_name };
            let token = |token: &Bytes| match version {
                0 => token.clone(),
                _ => frame(SaslAuthenticateRequest { auth_bytes: Secret(token.clone()) }.into(), 2),
            };
            let frames = [frame(chosen.into(), version), token(&first), token(&last)];
            write(corpus, "login", &format!("{mechanism}-{version}"), &cut(&frames));
        }
    }
    let token = "eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.eyJzdWIiOiJhZGEiLCJleHAiOjk5OTk5OTk5OTl9.AAAA";
    write(corpus, "tokens", "token", token.as_bytes());
    write(corpus, "tokens", "keys", format!("{}\0{token}", tokens::KEYS).as_bytes());
    for (number, text) in NAME_RULES.iter().enumerate() {
        write(corpus, "name_rules", &format!("rules-{number}"), text.as_bytes());
    }
}

/// A body of each request of the native API, and expressions of each kind: most are taken, and some are refused.
fn native(corpus: &Path) {
    for (number, body) in BODIES_IN_JSON.iter().enumerate() {
        write(corpus, "native_json", &format!("body-{number}"), body.as_bytes());
    }
    for (number, text) in EXPRESSIONS.iter().enumerate() {
        write(corpus, "native_filter", &format!("text-{number}"), text.as_bytes());
    }
    let deep = format!("size{} == 0", " * 1".repeat(46));
    write(corpus, "native_filter", "deep", deep.as_bytes());
    let too_deep = format!("{}1{}", "(".repeat(2000), ")".repeat(2000));
    write(corpus, "native_filter", "too-deep", too_deep.as_bytes());
}

/// The rounds with records in the kept directory of format version 1.
fn kept_rounds() -> Vec<Round> {
    let journal = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/duramen-storage/tests/fixtures/v1/journal");
    let mut rounds = Vec::new();
    for extent in fs::read_dir(journal).expect("the fixture is there") {
        let bytes = fs::read(extent.expect("it can be listed").path()).expect("it can be read");
        rounds.extend(rounds_of(0, &bytes.into()));
    }
    rounds.retain(|round| round.header.body_bytes > 0);
    assert!(!rounds.is_empty(), "there are records to begin with");
    rounds
}

/// Rings of three extents with small rounds: a whole one, one that is torn at its end, and one with a hole.
fn rings(corpus: &Path, rounds: &[Round]) {
    let bodies = rounds.iter().filter_map(|round| round.body.as_ref());
    let small: Vec<_> = bodies.filter(|body| body.len() < 256).take(6).collect();
    for (name, spoilt, missing) in [("whole", 0, 0), ("torn", 6, 0), ("hole", 0, 3)] {
        let mut input = Vec::new();
        for (lsn, body) in (1u8..).zip(&small) {
            let (file, page) = ((lsn - 1) / 3, (lsn - 1) % 3);
            let spoil = if lsn == spoilt { 4 } else { 0 };
            let len = u8::try_from(body.len()).expect("small");
            if lsn != missing {
                input.extend_from_slice(&[file, page, lsn, file + 1, 1, spoil, 0, 0, len, 0, 0, 0]);
                input.extend_from_slice(body);
            }
        }
        write(corpus, "journal", &format!("ring-{name}"), &input);
    }
}

/// Each kind of change to the first files of the kept directory; with mended checksums, and without.
fn changes(corpus: &Path) {
    for mode in [0, 2] {
        write(corpus, "segment_recovery", &format!("{mode}-unchanged"), &[mode]);
        for kind in 0..8 {
            for file in 0..24 {
                let input = [mode, kind, file, 0, 0, 40, file + 1, 2, 3];
                write(corpus, "segment_recovery", &format!("{mode}-{kind}-{file}"), &input);
            }
        }
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
