//! Certificates and users: who gets in, and who does not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use duramen_client::{Client, Connection, Error, Login, Options, Tls};
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::MetadataRequest;
use duramen_protocol::sasl::Mechanism;
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Node, PATIENCE, field, native_of};

/// Makes an authority, and a certificate for this machine.
pub(super) fn certificates(directory: &Path) {
    let mut init = Command::new(env!("CARGO_BIN_EXE_duramen"));
    init.args(["tls", "init", "--node", "localhost,127.0.0.1", "--client", "alice"]);
    init.arg("--out").arg(directory);
    assert!(init.stdout(Stdio::null()).status().unwrap().success());
}

/// Returns what a client that trusts an authority hears from a listener, or why it hears nothing.
fn heard(at: SocketAddr, authority: Option<&Path>) -> Result<i32, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tls = authority.map(|path| Tls::trusting(&path.join("ca.pem"), None).unwrap());
    let options = Options { tls, ..Options::new([at.to_string()]) };
    runtime.block_on(async {
        let client = Client::connect(options).await.map_err(|error| format!("{error:?}"))?;
        let known = client.metadata(Some(&[]), false).await.map_err(|error| error.to_string())?;
        Ok(known.brokers[0].port)
    })
}

#[test]
fn with_tls_clients_read_what_they_wrote_and_others_hear_nothing() {
    let (directory, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let theirs = tempfile::tempdir().unwrap();
    certificates(mine.path());
    certificates(theirs.path());
    let keystore = format!(
        "listener.name.inside.ssl.keystore.location={}/localhost.pem",
        mine.path().display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(["serve", "--log-format", "json", "--data-dir"]).arg(directory.path());
    command.args(["--set", "listeners=INSIDE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"]);
    command.args(["--set", "listener.security.protocol.map=INSIDE:SSL", "--set", &keystore]);
    let mut node = Node::spawn(command.stderr(Stdio::piped()));
    let plain: SocketAddr =
        field(&node.wait_for_log("\"listener\":\"PLAINTEXT\""), "address").parse().unwrap();
    assert_eq!(heard(node.address, Some(mine.path())), Ok(i32::from(node.address.port())));
    assert!(heard(node.address, Some(theirs.path())).unwrap_err().contains("UnknownIssuer"));
    assert!(heard(node.address, None).is_err());
    node.wait_for_log("no TLS handshake");
    assert!(heard(plain, Some(mine.path())).unwrap_err().contains("NoTls"));
    assert_eq!(heard(plain, None), Ok(i32::from(plain.port())));

    // More than a socket takes at once, each way.
    let line = "x".repeat(999);
    let text = format!("{line}\n").repeat(20_000);
    let (at, authority) = (node.address.to_string(), mine.path().join("ca.pem"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(arguments).args(["--bootstrap", &at]);
        command.env("DURAMEN_TLS_CA", &authority);
        command
    };
    let mut produce = run(&["produce", "t"]).stdin(Stdio::piped()).spawn().unwrap();
    produce.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(produce.wait().unwrap().success());
    let consumed = run(&["consume", "t"]).output().unwrap();
    assert!(consumed.status.success());
    assert!(consumed.stdout == text.as_bytes(), "{} bytes", consumed.stdout.len());
}

/// Makes a list of certificates that count no more, signed by the authority in a directory.
fn revocations(authority: &Path, revoked: &[&Path]) -> String {
    let read = |name: &str| std::fs::read_to_string(authority.join(name)).unwrap();
    let key = KeyPair::from_pem(&read("ca-key.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), key).unwrap();
    let serial = |path: &&Path| {
        let text = std::fs::read(path).unwrap();
        let certificate = CertificateDer::from_pem_slice(&text).unwrap();
        let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
        RevokedCertParams {
            serial_number: SerialNumber::from_slice(parsed.raw_serial()),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        }
    };
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2100, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(serial).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(&issuer).unwrap().pem().unwrap()
}

/// A listener that asks each client for a certificate is not open to everybody. Rules make the client's name of that in
/// the certificate, and a list takes certificates back.
#[test]
fn clients_without_the_certificate_that_a_listener_asks_for_hear_nothing() {
    let (directory, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let theirs = tempfile::tempdir().unwrap();
    certificates(mine.path());
    certificates(theirs.path());
    let at = |name: &str| mine.path().join(name).display().to_string();
    let alice = mine.path().join("alice.pem");
    let list = directory.path().join("revoked.pem");
    std::fs::write(&list, revocations(mine.path(), &[])).unwrap();
    let start = |host: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        let data = directory.path().join("data");
        command.args(["serve", "--log-format", "json", "--data-dir"]).arg(data);
        for setting in [
            format!("listeners=SSL://{host}:0"),
            "ssl.client.auth=required".to_owned(),
            format!("ssl.keystore.location={}", at("localhost.pem")),
            format!("ssl.truststore.location={}", at("ca.pem")),
            format!("ssl.crl.location={}", list.display()),
            "ssl.principal.mapping.rules=RULE:CN=(al.*)/$1/U".to_owned(),
            "super.users=User:ALICE".to_owned(),
        ] {
            command.args(["--set", &setting]);
        }
        Node::spawn(command.stderr(Stdio::piped()))
    };
    drop(start("0.0.0.0"));
    let mut node = start("127.0.0.1");
    let bootstrap = format!("localhost:{}", node.address.port());
    let makes = |topic: &str, own: Option<&Path>| {
        let mut create = Command::new(env!("CARGO_BIN_EXE_duramen"));
        create.args([
            "topic",
            "create",
            topic,
            "--bootstrap",
            &bootstrap,
            "--tls-ca",
            &at("ca.pem"),
        ]);
        if let Some(own) = own {
            create.arg("--tls-cert").arg(own);
        }
        let done = create.output().unwrap();
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    let (is_in, error) = makes("one", Some(&alice));
    assert!(is_in, "{error}");
    assert!(!makes("two", None).0 && !makes("two", Some(&theirs.path().join("alice.pem"))).0);
    // No rule makes a name of a node's.
    assert!(!makes("two", Some(&mine.path().join("localhost.pem"))).0);
    node.wait_for_log("no rule of ssl.principal.mapping.rules fits the name CN=localhost");
    std::fs::write(&list, revocations(mine.path(), &[&alice])).unwrap();
    node.wait_for_log("new connections get the new certificate");
    assert!(!makes("two", Some(&alice)).0);
    node.wait_for_log("Revoked");
}

#[test]
fn a_new_certificate_is_taken_while_the_node_runs() {
    let (directory, first) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let second = tempfile::tempdir().unwrap();
    certificates(first.path());
    certificates(second.path());
    let keystore = directory.path().join("keystore.pem");
    let put = |from: &Path| {
        std::fs::copy(from.join("localhost.pem"), directory.path().join("next.pem")).unwrap();
        std::fs::rename(directory.path().join("next.pem"), &keystore).unwrap();
    };
    put(first.path());
    let config = directory.path().join("config.toml");
    let text = format!(
        "[settings]\nlisteners = \"SSL://127.0.0.1:0\"\n\"ssl.keystore.location\" = {keystore:?}"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(["serve", "--log-format", "json", "--config"]).arg(&config);
    command.arg("--data-dir").arg(directory.path().join("data"));
    let mut node = Node::spawn(command.stderr(Stdio::piped()));
    assert!(heard(node.address, Some(first.path())).is_ok());
    put(second.path());
    node.signal("-HUP");
    node.wait_for_log("new connections get the new certificate");
    assert!(heard(node.address, Some(first.path())).is_err());
    assert!(heard(node.address, Some(second.path())).is_ok());
    // Without a signal: a node looks at the files by itself.
    std::fs::write(&keystore, "half of a file").unwrap();
    node.wait_for_log("the last good certificate stays");
    assert!(heard(node.address, Some(second.path())).is_ok());
}

/// A node with a listener that asks for a name and a password, and the user root.
pub(super) fn asking(directory: &Path, listeners: &str, more: &[&str]) -> Command {
    std::fs::create_dir_all(directory).unwrap();
    let users = directory.join("users");
    std::fs::write(&users, "root:SCRAM-SHA-512:first secret\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(["serve", "--log-format", "json", "--data-dir"]).arg(directory.join("data"));
    command.args(["--set", &format!("listeners={listeners}")]);
    command.args(["--set", &format!("bootstrap.users.file={}", users.display())]);
    for setting in more {
        command.args(["--set", setting]);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

pub(super) const ALL: &str = "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512";

fn options(at: SocketAddr, login: Option<(&str, &'static str, &str)>) -> Options {
    let login = login.map(|(user, password, mechanism)| Login::Password {
        user: user.to_owned(),
        password: Bytes::from_static(password.as_bytes()),
        mechanism: Mechanism::from_name(mechanism).unwrap(),
    });
    Options { login, ..Options::new([at.to_string()]) }
}

/// Returns the answer to a client's first request, or why it has none.
fn first_answer(options: &Options) -> Result<i32, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connection = Connection::open(&options.bootstrap[0], options).await?;
        let known = connection.call(&MetadataRequest::default()).await?;
        Ok(known.brokers[0].port)
    })
}

pub(super) fn run(at: SocketAddr, password: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
    command.args(arguments).args(["--bootstrap", &at.to_string(), "--user", "root"]);
    command.arg("--password-file").arg(password).output().unwrap()
}

pub(super) fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn clients_get_in_with_a_password_alone_and_go_with_their_user() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [ALL, "super.users=User:root"];
    let command = &mut asking(directory.path(), "SASL_PLAINTEXT://127.0.0.1:0", &settings);
    let mut node = Node::spawn(command);
    let at = node.address;
    let port = i32::from(at.port());
    for mechanism in ["SCRAM-SHA-512", "PLAIN"] {
        let answer = first_answer(&options(at, Some(("root", "first secret", mechanism))));
        assert_eq!(answer.unwrap(), port, "{mechanism}");
        for login in [("root", "wrong", mechanism), ("nobody", "first secret", mechanism)] {
            let refused = first_answer(&options(at, Some(login))).unwrap_err();
            let code = refused.code();
            assert_eq!(code, Some(ErrorCode::SaslAuthenticationFailed), "{login:?}: {refused}");
        }
    }
    node.wait_for_log("login refused");
    assert!(matches!(first_answer(&options(at, None)), Err(Error::Lost { .. })));
    node.wait_for_log("has to say who it is");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let root = file("root", "first secret\n");
    let new = file("new", "ada's secret").display().to_string();
    let created = run(at, &root, &["user", "create", "ada", "--new-password-file", &new]);
    assert_eq!(said(&created), "ada has a password for SCRAM-SHA-256 and SCRAM-SHA-512\n");
    let listed = said(&run(at, &root, &["user", "list"]));
    let rows = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let expected = [
        ["USER", "MECHANISM", "ITERATIONS"],
        ["ada", "SCRAM-SHA-256", "8192"],
        ["ada", "SCRAM-SHA-512", "8192"],
        ["root", "SCRAM-SHA-512", "8192"],
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    let again = run(at, &root, &["user", "create", "ada", "--new-password-file", &new]);
    let told = String::from_utf8(again.stderr).unwrap();
    assert!(told.contains("duramen user password ada"), "{told}");

    // The log says who did what.
    said(&run(at, &root, &["topic", "create", "t", "--config", "retention.ms=5"]));
    said(&run(at, &root, &["topic", "alter", "t", "--config", "retention.ms=6"]));
    said(&run(at, &root, &["topic", "delete", "t"]));
    for (deed, of) in [
        ("password of a user set", "\"name\":\"ada\",\"detail\":\"SCRAM-SHA-256, SCRAM-SHA-512\""),
        ("topic made", "\"name\":\"t\",\"detail\":\"retention.ms=5, partition 0 on [1]\""),
        ("settings of a topic altered", "\"name\":\"t\",\"detail\":\"retention.ms=6\""),
        ("topic deleted", "\"name\":\"t\""),
    ] {
        let line = node.wait_for_log(&format!("\"message\":\"{deed}\""));
        assert!(line.contains(of) && line.contains("\"principal\":\"User:root\""), "{line}");
    }

    // Her connections end with her, and her password lets nobody in any more.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ada = || options(at, Some(("ada", "ada's secret", "SCRAM-SHA-256")));
    let hers = runtime.block_on(Connection::open(&at.to_string(), &ada())).unwrap();
    let request = MetadataRequest::default();
    assert!(runtime.block_on(hers.call(&request)).is_ok());
    assert_eq!(said(&run(at, &root, &["user", "delete", "ada"])), "ada is removed\n");
    while runtime.block_on(hers.call(&request)).is_ok() {}
    node.wait_for_log("the user ada was removed");
    let refused = first_answer(&ada()).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::SaslAuthenticationFailed));

    // No secret is in the log.
    node.signal("-TERM");
    node.wait();
    node.seen.extend(node.log.iter());
    let seen = node.seen.concat();
    assert!(!seen.contains("first secret") && !seen.contains("ada's secret"));
}

/// The length of a frame is enough: the node waits for none of its bytes.
#[test]
fn a_long_token_is_refused_before_it_comes() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [ALL, "sasl.server.max.receive.size=4096"];
    let command = &mut asking(directory.path(), "SASL_PLAINTEXT://127.0.0.1:0", &settings);
    let mut node = Node::spawn(command);
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&4097_u32.to_be_bytes()).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "the node closes the connection");
    let line = node.wait_for_log("4097");
    assert!(line.contains("4096"), "{line}");
    // A stranger's request of whatever kind, with a batch or without, is not even decoded.
    let mut stream = TcpStream::connect(node.address).unwrap();
    assert_eq!(ask(&mut stream, METADATA), None);
    node.wait_for_log("has to say who it is");
}

/// Clients before KIP-152, by hand: the handshake in version 0, and then tokens with a length alone.
#[test]
fn tokens_without_requests_around_them_log_a_client_in() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::spawn(&mut asking(directory.path(), "SASL_PLAINTEXT://127.0.0.1:0", &[ALL]));
    let exchange = |token: &[u8]| {
        let mut stream = TcpStream::connect(node.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let handshake = b"\0\0\0\x11\0\x11\0\0\0\0\0\x07\xff\xff\0\x05PLAIN";
        stream.write_all(handshake).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[..6], b"\0\0\0\x07\0\0", "the id of the request, and no error");
        let length = u32::try_from(token.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], token].concat()).unwrap();
        stream.read_exact(&mut length.clone()).map(|()| stream)
    };
    assert!(exchange(b"\0root\0wrong").is_err(), "the connection is closed without a word");
    let mut stream = exchange(b"\0root\0first secret").unwrap();
    stream.write_all(&super::api_versions(1)).unwrap();
    assert!(stream.read_exact(&mut [0; 8]).is_ok());
}

#[test]
fn a_listener_with_tls_and_passwords_wants_both() {
    let (directory, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(mine.path());
    let keystore = format!("ssl.keystore.location={}/localhost.pem", mine.path().display());
    let settings = [ALL, keystore.as_str()];
    // Other machines may come: nobody gets in without a password.
    let node = Node::spawn(&mut asking(directory.path(), "SASL_SSL://0.0.0.0:0", &settings));
    let at = SocketAddr::from(([127, 0, 0, 1], node.address.port()));
    let tls = || Some(Tls::trusting(&mine.path().join("ca.pem"), None).unwrap());
    for mechanism in ["SCRAM-SHA-512", "PLAIN"] {
        let login = Some(("root", "first secret", mechanism));
        let sealed = Options { tls: tls(), ..options(at, login) };
        assert_eq!(first_answer(&sealed).unwrap(), i32::from(at.port()));
        assert!(first_answer(&options(at, login)).is_err());
    }
    assert!(first_answer(&Options { tls: tls(), ..options(at, None) }).is_err());
}

#[test]
fn benchmarks_come_in_as_other_commands_do() {
    let (directory, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(mine.path());
    let keystore = format!("ssl.keystore.location={}/localhost.pem", mine.path().display());
    let settings = [ALL, &keystore, "super.users=User:root"];
    let mut command = asking(directory.path(), "SASL_SSL://127.0.0.1:0", &settings);
    let mut node = Node::spawn(command.args(["--native", "127.0.0.1:0"]));
    let (kafka, native) = (node.address.to_string(), native_of(&mut node).to_string());
    let password = directory.path().join("password");
    std::fs::write(&password, "first secret").unwrap();
    let bench = |arguments: &str, to: [&str; 2]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.arg("bench").args(arguments.split(' ')).args(to);
        command.arg("--tls-ca").arg(mine.path().join("ca.pem"));
        command.args(["--user", "root", "--password-file"]).arg(&password);
        command.args(["--output", "json"]).stdin(Stdio::piped());
        let mut done = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // `takeover` waits for a line.
        drop(done.stdin.take().unwrap().write_all(b"go\n"));
        let done = done.wait_with_output().unwrap();
        let told = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        assert!(done.status.success(), "{arguments:?}: {told}");
        serde_json::from_str::<Value>(told.trim_start_matches("ready\n")).unwrap()
    };
    let to_kafka = ["--bootstrap", &kafka];
    bench("append -n 4 -C 2 --seconds 0.2 --warmup-seconds 0", to_kafka);
    bench("tail --topic t --seconds 0.2 --warmup-seconds 0", to_kafka);
    // More than a socket takes at once.
    bench("produce --topic u --messages 20000", to_kafka);
    for way in ["--check", "--no-ahead"] {
        let read = bench(&format!("consume --topic u {way}"), to_kafka);
        assert_eq!(read["records"], 20_000, "{read}");
    }
    bench("enqueue --via kafka --topic q --seconds 0.2 --warmup-seconds 0", to_kafka);

    let to_native = ["--native", &native];
    for way in ["grpc", "stream", "http"] {
        let done = bench(&format!("enqueue --via {way} --topic q --messages 20"), to_native);
        assert_eq!((&done["total"], &done["refused"]), (&20.into(), &0.into()), "{way}");
    }
    for way in ["grpc", "http"] {
        let done = bench(&format!("retrieve --via {way} --topic q --reads 20"), to_native);
        assert_eq!(done["total"], 20, "{way}");
        bench(
            &format!("wait --via {way} --readers 2 --seconds 0.2 --warmup-seconds 0.1"),
            to_native,
        );
    }
    bench("takeover --topic v --queues 6 --callers 2", to_native);
    let read = bench("read --topic q", to_native);
    assert!(read["bytes"].as_u64() > Some(0), "{read}");
}

#[test]
fn passwords_do_not_travel_as_they_are_unless_that_is_meant() {
    let directory = tempfile::tempdir().unwrap();
    let asking = |mechanisms: &str| {
        let mechanisms = format!("sasl.enabled.mechanisms={mechanisms}");
        asking(directory.path(), "SASL_PLAINTEXT://0.0.0.0:0", &[&mechanisms])
    };
    let refused = asking("PLAIN,SCRAM-SHA-512").output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("could read the passwords"), "{told}");
    drop(Node::spawn(&mut asking("SCRAM-SHA-512")));
    drop(Node::spawn(asking("PLAIN").arg("--open")));
}

#[test]
fn a_user_may_do_what_rules_allow_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [ALL, "super.users=User:root"];
    let mut node =
        Node::spawn(&mut asking(directory.path(), "SASL_PLAINTEXT://127.0.0.1:0", &settings));
    let at = node.address;
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (root, ada) = (file("root", "first secret"), file("ada", "hers"));
    let by_root = |arguments: &[&str]| said(&run(at, &root, arguments));
    let by_ada = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(arguments).args(["--bootstrap", &at.to_string(), "--user", "ada"]);
        let done = command.arg("--password-file").arg(&ada).output().unwrap();
        (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    by_root(&["user", "create", "ada", "--new-password-file", &ada.display().to_string()]);
    by_root(&["topic", "create", "orders-1"]);
    let (is_made, told) = by_ada(&["topic", "create", "hers"]);
    assert!(!is_made && told.contains("TOPIC_AUTHORIZATION_FAILED"), "{told}");
    let line = node.wait_for_log("duramen::access");
    assert!(line.contains("User:ada") && line.contains("hers"), "{line}");
    assert_eq!(by_ada(&["topic", "list", "-o", "json"]), (true, "[]\n".to_owned()));
    let rule = ["--principal", "User:ada", "--topic", "orders-*"];
    let told = by_root(&[&["acl", "allow", "--operation", "read"], &rule[..]].concat());
    let sentence = "User:ada may read each topic whose name begins with orders-, and describe it\n";
    assert_eq!(told, sentence);
    assert!(by_ada(&["topic", "list", "-o", "json"]).1.contains("orders-1"));
    assert!(!by_ada(&["topic", "delete", "orders-1", "--yes"]).0);
    let asked = ["acl", "explain", "--principal", "User:ada", "--topic", "orders-1", "--operation"];
    let explained = |operation: &str| by_root(&[&asked[..], &[operation]].concat());
    let may = "User:ada may describe topic orders-1: a rule says that User:ada may read each topic \
               whose name begins with orders-, and describe it\n";
    assert_eq!(explained("describe"), may);
    let may_not = "User:ada may not write topic orders-1: the resource has rules, and none of them \
                   allows it\n";
    assert_eq!(explained("write"), may_not);
    let denied = by_root(&[&["acl", "deny", "--operation", "all"], &rule[..]].concat());
    assert!(denied.starts_with("User:ada may not do everything with each topic"), "{denied}");
    assert!(explained("describe").contains("may not"));
    assert_eq!(by_ada(&["topic", "list", "-o", "json"]), (true, "[]\n".to_owned()));
    let listed = by_root(&["acl", "list", "--topic", "orders-7", "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed[0]["principal"], "User:ada");
    let shown = by_root(&["acl", "remove", "--principal", "User:ada", "--dry-run"]);
    assert!(shown.ends_with("2 rules would be removed\n"), "{shown}");
    let removed = by_root(&["acl", "remove", "--principal", "User:ada"]);
    assert!(removed.ends_with("2 rules removed\n"), "{removed}");
    assert!(explained("read").contains("the resource has no rule"));
}

/// Starts a node that takes tokens, and returns the means to make some: each is for a user, and ends after so many
/// seconds.
fn asking_for_tokens(directory: &Path) -> (Command, impl Fn(&str, u64) -> String) {
    let rng = ring::rand::SystemRandom::new();
    let document = Ed25519KeyPair::generate_pkcs8(&rng).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let text = |bytes: &[u8]| data_encoding::BASE64URL_NOPAD.encode(bytes);
    let keys = directory.join("keys.json");
    let key =
        json!({"kid": "1", "kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref())});
    std::fs::write(&keys, json!({ "keys": [key] }).to_string()).unwrap();
    let mut command = asking(
        directory,
        "SASL_PLAINTEXT://127.0.0.1:0",
        &[
            "sasl.enabled.mechanisms=OAUTHBEARER,PLAIN",
            &format!("sasl.oauthbearer.jwks.endpoint.url=file://{}", keys.display()),
            "sasl.oauthbearer.expected.audience=logs",
            "sasl.oauthbearer.expected.issuer=us",
            "sasl.oauthbearer.clock.skew.seconds=0",
            "super.users=User:ada;User:root",
        ],
    );
    command.arg("--open");
    let make = move |user: &str, ends_s: u64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = json!({"sub": user, "aud": "logs", "iss": "us", "exp": now + ends_s});
        let begun = [json!({"alg": "EdDSA", "kid": "1"}), claims];
        let begun = begun.map(|part| text(part.to_string().as_bytes())).join(".");
        format!("{begun}.{}", text(pair.sign(begun.as_bytes()).as_ref()))
    };
    (command, make)
}

#[test]
fn the_owner_of_a_token_gets_in_and_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let (mut command, make) = asking_for_tokens(directory.path());
    let mut node = Node::spawn(&mut command);
    let at = node.address.to_string();
    let file = directory.path().join("token");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.args(arguments).args(["--bootstrap", &at]);
        command.arg("--token-file").arg(&file).output().unwrap()
    };
    std::fs::write(&file, make("ada", 100)).unwrap();
    said(&run(&["topic", "create", "hers"]));
    std::fs::write(&file, make("bob", 100) + "\n").unwrap();
    let denied = String::from_utf8(run(&["topic", "create", "his"]).stderr).unwrap();
    assert!(denied.contains("TOPIC_AUTHORIZATION_FAILED"), "{denied}");
    let mut forged = make("ada", 100);
    forged.replace_range(forged.len() - 8.., "AAAAAAAA");
    for (token, why) in [(forged, "InvalidSignature"), (make("ada", 0), "its time is over")] {
        std::fs::write(&file, &token).unwrap();
        let refused = run(&["topic", "list"]);
        assert!(!refused.status.success());
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(told.contains("SASL_AUTHENTICATION_FAILED"), "{told}");
        let line = node.wait_for_log("login refused");
        assert!(line.contains(why) || line.contains("ExpiredSignature"), "{line}");
        assert!(!line.contains(&token), "{line}");
    }
}

/// One request by hand, and its answer.
fn ask(stream: &mut TcpStream, request: &[u8]) -> Option<Vec<u8>> {
    stream.write_all(&u32::try_from(request.len()).unwrap().to_be_bytes()).ok()?;
    stream.write_all(request).ok()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}

/// Logs in by hand; `handshake` and tokens are in the form of KIP-152. Returns error code and lifetime.
fn log_in_by_hand(stream: &mut TcpStream, mechanism: &str, token: &[u8]) -> Option<(i16, i64)> {
    let short = |text: &[u8]| [&u16::try_from(text.len()).unwrap().to_be_bytes(), text].concat();
    let handshake = [&b"\0\x11\0\x01\0\0\0\x07\xff\xff"[..], &short(mechanism.as_bytes())].concat();
    let answer = ask(stream, &handshake)?;
    let code = i16::from_be_bytes([answer[4], answer[5]]);
    if code != 0 {
        return Some((code, 0));
    }
    let length = u32::try_from(token.len()).unwrap().to_be_bytes();
    let request = [&b"\0\x24\0\x01\0\0\0\x08\xff\xff"[..], &length, token].concat();
    let answer = ask(stream, &request)?;
    let lifetime = answer[answer.len() - 8..].try_into().unwrap();
    Some((i16::from_be_bytes([answer[4], answer[5]]), i64::from_be_bytes(lifetime)))
}

const METADATA: &[u8] = b"\0\x03\0\0\0\0\0\x09\xff\xff\0\0\0\0";

#[test]
fn a_client_shows_again_who_it_is_before_its_token_ends_or_is_out() {
    let directory = tempfile::tempdir().unwrap();
    let (mut command, make) = asking_for_tokens(directory.path());
    let mut node = Node::spawn(&mut command);
    let at = node.address;
    let message =
        |user: &str, ends_s| format!("n,,\u{1}auth=Bearer {}\u{1}\u{1}", make(user, ends_s));
    let open = || {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let by_token = |stream: &mut TcpStream, user: &str, ends_s| {
        log_in_by_hand(stream, "OAUTHBEARER", message(user, ends_s).as_bytes())
    };
    let mut stream = open();
    let (code, lifetime_ms) = by_token(&mut stream, "ada", 20).unwrap();
    assert!(code == 0 && (1..=20_000).contains(&lifetime_ms), "{code} {lifetime_ms}");
    assert!(ask(&mut stream, METADATA).is_some());
    // At once is too early, as in Kafka: ILLEGAL_SASL_STATE.
    assert_eq!(by_token(&mut stream, "ada", 600), Some((34, 0)));
    let again = loop {
        match by_token(&mut stream, "ada", 600) {
            Some((34, _)) => std::thread::sleep(Duration::from_millis(20)),
            other => break other.unwrap(),
        }
    };
    assert!(again.0 == 0 && again.1 > 500_000, "{again:?}");
    assert!(ask(&mut stream, METADATA).is_some());

    // One that does nothing is closed when its time is over.
    let mut tries = 1..;
    let mut silent = loop {
        let mut silent = open();
        // A busy machine may take longer to log in than a short token counts.
        if by_token(&mut silent, "ada", 2 * tries.next().unwrap()).unwrap().0 == 0 {
            break silent;
        }
    };
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    node.wait_for_log("did not show again who it is");
    assert!(ask(&mut stream, METADATA).is_some(), "the other one goes on");

    // Nobody becomes another user, or shows it in another way.
    for (mechanism, token, expected) in [
        ("OAUTHBEARER", message("root", 600), 58),
        ("PLAIN", "\0root\0first secret".to_owned(), 33),
    ] {
        let mut stream = open();
        assert_eq!(by_token(&mut stream, "ada", 600).unwrap().0, 0);
        let code = loop {
            match log_in_by_hand(&mut stream, mechanism, token.as_bytes()) {
                Some((34, _)) => std::thread::sleep(Duration::from_millis(20)),
                other => break other.unwrap().0,
            }
        };
        assert_eq!(code, expected);
        assert!(ask(&mut stream, METADATA).is_none(), "the connection is closed");
    }
}
