//! The ports of HTTP: the native API's, and that of metrics. Each request shows who its client is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use data_encoding::BASE64;
use duramen::proto::logs_client::LogsClient;
use duramen::proto::{ReadRequest, TailRequest, read_request};
use tonic::{Code, Request};
use tonic_types::StatusExt;

use super::security::{ALL, asking, certificates, run, said};
use super::{Node, PATIENCE, native_of};

const TAIL: &str = "/v1/topics/t/partitions/0";
const RECORDS: &str = "/v1/topics/t/partitions/0/records";

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()))
}

/// Sends a request with what its client shows. Returns the status, and all that came.
fn send(at: SocketAddr, what: &str, shown: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let shown = shown.map(|it| format!("authorization: {it}\r\n")).unwrap_or_default();
    let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1";
    stream.write_all(format!("{what} {head}\r\n{shown}\r\nx").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

fn status(at: SocketAddr, what: &str, shown: Option<&str>) -> u16 {
    send(at, what, shown).0
}

/// Runs a command of the native API as a user, or as nobody.
fn native(at: &str, arguments: &[&str], safety: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(arguments).args(["--native", at]).args(safety).output().unwrap()
}

fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// The native API is as closed as the first listener, by the same users and rules.
#[tokio::test(flavor = "multi_thread")]
async fn each_native_call_shows_whose_it_is_and_ends_with_its_user() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [ALL, "super.users=User:root", "connection.failed.authentication.delay.ms=1"];
    let mut command = asking(directory.path(), "SASL_PLAINTEXT://127.0.0.1:0", &settings);
    let mut node = Node::spawn(command.args(["--native", "127.0.0.1:0"]));
    let (kafka, at) = (node.address, native_of(&mut node));
    let root = file(directory.path(), "root", "first secret");
    let password = file(directory.path(), "ada", "her secret");
    let by_root = |arguments: &[&str]| said(&run(kafka, &root, arguments));
    by_root(&["topic", "create", "t"]);
    by_root(&["user", "create", "ada", "--new-password-file", password.to_str().unwrap()]);

    let (ada, admin) = (basic("ada", "her secret"), basic("root", "first secret"));
    let (refused, answer) = send(at, &format!("GET {TAIL}"), None);
    assert_eq!(refused, 401);
    assert!(answer.contains("/problems/unauthenticated"), "{answer}");
    let challenge = "www-authenticate: basic realm=\"duramen\"";
    assert!(answer.to_ascii_lowercase().contains(challenge), "{answer}");
    for wrong in [basic("ada", "his secret"), basic("eve", "x"), "Bearer x".into(), "x".into()] {
        let (refused, answer) = send(at, &format!("GET {TAIL}"), Some(&wrong));
        assert_eq!(refused, 401);
        assert!(answer.contains("\"Authentication failed\""), "{answer}");
    }
    assert_eq!(status(at, &format!("GET {TAIL}"), Some(&ada)), 403, "no rule lets her");
    for (path, [nobody, hers, admins]) in [
        ("/livez", [200, 200, 200]),
        ("/readyz", [200, 200, 200]),
        ("/metrics", [401, 403, 200]),
        ("/healthz", [401, 403, 200]),
        ("/openapi.json", [401, 200, 200]),
        ("/none", [401, 404, 404]),
    ] {
        let of = |shown| status(at, &format!("GET {path}"), shown);
        assert_eq!([of(None), of(Some(&ada)), of(Some(&admin))], [nobody, hers, admins], "{path}");
    }
    by_root(&["acl", "allow", "--principal", "User:ada", "--topic", "t", "--operation", "read"]);
    assert_eq!(status(at, &format!("GET {TAIL}"), Some(&ada)), 200);
    assert_eq!(status(at, &format!("POST {RECORDS}"), Some(&ada)), 403);
    by_root(&["acl", "allow", "--principal", "User:ada", "--topic", "t", "--operation", "write"]);
    assert_eq!(status(at, &format!("POST {RECORDS}"), Some(&ada)), 200);

    // The same by gRPC, and by commands.
    let mut logs = LogsClient::connect(format!("http://{at}")).await.unwrap();
    let tail = || TailRequest { topic: "t".into(), partition: 0 };
    let told = logs.tail(tail()).await.unwrap_err();
    let reason = told.get_details_error_info().unwrap().reason;
    assert_eq!((told.code(), reason.as_str()), (Code::Unauthenticated, "unauthenticated"));
    let by_ada = |mut request: Request<ReadRequest>| {
        request.metadata_mut().insert("authorization", ada.parse().unwrap());
        request
    };
    let mine = ["--user", "ada", "--password-file", password.to_str().unwrap()];
    let append = ["log", "append", "t", "y"];
    assert!(said(&native(&at.to_string(), &append, &mine)).contains("appended"));
    let nobody = native(&at.to_string(), &append, &[]);
    assert!(String::from_utf8(nobody.stderr).unwrap().contains("does not say who"));

    // A call that waits goes with its user, and the next one does not begin.
    let wait = ReadRequest { topic: "t".into(), wait_ms: 60_000, ..ReadRequest::default() };
    let wait = ReadRequest { start: Some(read_request::Start::From(2)), ..wait };
    let mut pages = logs.read(by_ada(Request::new(wait.clone()))).await.unwrap().into_inner();
    by_root(&["user", "delete", "ada"]);
    assert_eq!(pages.message().await.unwrap_err().code(), Code::Unavailable);
    let told = logs.read(by_ada(Request::new(wait))).await.unwrap_err();
    assert_eq!(told.code(), Code::Unauthenticated);
}

/// A certificate makes the client of the native API; the port of metrics asks for a password, and seals it.
#[test]
fn ports_of_http_have_certificates_and_protocols_of_their_own() {
    let (directory, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(mine.path());
    let path = |name: &str| mine.path().join(name).display().to_string();
    let settings = [
        "sasl.enabled.mechanisms=SCRAM-SHA-256".to_owned(),
        "listener.security.protocol.map=NATIVE:SSL,HTTP:SASL_PLAINTEXT".to_owned(),
        format!("listener.name.native.ssl.keystore.location={}", path("localhost.pem")),
        format!("listener.name.native.ssl.truststore.location={}", path("ca.pem")),
        "listener.name.native.ssl.client.auth=required".to_owned(),
        "super.users=User:CN=alice".to_owned(),
    ];
    let settings = settings.each_ref().map(String::as_str);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = asking(directory.path(), "PLAINTEXT://127.0.0.1:0", &settings);
    command.args(["--native", "127.0.0.1:0", "--http", &free.to_string()]);
    let mut node = Node::spawn(&mut command);
    let at = format!("localhost:{}", native_of(&mut node).port());
    let (ca, alice) = (path("ca.pem"), path("alice.pem"));
    let known = ["--tls-ca", &ca, "--tls-cert", &alice];
    let told = native(&at, &["queue", "list", "t"], &known);
    assert!(String::from_utf8_lossy(&told.stderr).contains("no such topic"), "{told:?}");
    for stranger in [&["--tls-ca", &ca][..], &[]] {
        let told = native(&at, &["queue", "list", "t"], stranger);
        let told = String::from_utf8(told.stderr).unwrap();
        assert!(!told.contains("no such topic"), "{told}");
    }

    let shown = basic("root", "first secret");
    assert_eq!(status(free, "GET /livez", None), 200);
    assert_eq!(status(free, "GET /metrics", None), 401);
    assert_eq!(status(free, "GET /metrics", Some(&shown)), 403, "root has no right here");
}
