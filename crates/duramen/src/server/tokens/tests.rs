//! Tokens that count, and all kinds that do not.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use data_encoding::BASE64URL_NOPAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RSA_PSS_SHA256, RsaKeyPair,
};
use serde_json::json;

use super::*;

/// Keys of a test, which sign tokens.
enum Signer {
    Ec(Box<EcdsaKeyPair>),
    Ed(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>),
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64URL_NOPAD.encode(bytes.as_ref())
}

impl Signer {
    fn ec() -> Self {
        let (rng, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let document = EcdsaKeyPair::generate_pkcs8(kind, &rng).unwrap();
        Self::Ec(EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &rng).unwrap().into())
    }

    fn ed() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    /// Takes the key of a fixture: `ring` makes none.
    fn rsa() -> Self {
        let text = include_bytes!("rsa-key-of-tests.pem");
        let key = rustls::pki_types::pem::PemObject::from_pem_slice(text).unwrap();
        let rustls::pki_types::PrivateKeyDer::Pkcs8(key) = key else { panic!("it is PKCS#8") };
        Self::Rsa(RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).unwrap().into())
    }

    fn public(&self, id: &str) -> Value {
        match self {
            Self::Ec(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kid": id, "kty": "EC", "crv": "P-256", "x": base64(x), "y": base64(y)})
            }
            Self::Ed(pair) => {
                let x = base64(pair.public_key());
                json!({"kid": id, "kty": "OKP", "crv": "Ed25519", "x": x})
            }
            Self::Rsa(pair) => {
                let public: ring::rsa::PublicKeyComponents<Vec<u8>> = pair.public().into();
                let (n, e) = (base64(public.n), base64(public.e));
                json!({"kid": id, "kty": "RSA", "use": "sig", "n": n, "e": e})
            }
        }
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let rng = SystemRandom::new();
        match self {
            Self::Ec(pair) => pair.sign(&rng, message).unwrap().as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let sign = |padding: &'static dyn ring::signature::RsaEncoding, into: &mut [u8]| {
                    pair.sign(padding, &rng, message, into).unwrap();
                };
                match algorithm {
                    "PS256" => sign(&RSA_PSS_SHA256, &mut signature),
                    _ => sign(&RSA_PKCS1_SHA256, &mut signature),
                }
                signature
            }
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        let algorithm = header["alg"].as_str().unwrap_or_default();
        format!("{message}.{}", base64(self.sign(algorithm, message.as_bytes())))
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn settings(keys: KeySource) -> TokenSettings {
    TokenSettings {
        keys,
        refresh: Duration::from_secs(3600),
        backoff: (Duration::from_millis(1), Duration::from_millis(20)),
        audience: vec!["logs".to_owned(), "queues".to_owned()],
        issuer: Some("https://id.example.com".to_owned()),
        user_claim: "sub".to_owned(),
        skew: Duration::from_secs(30),
    }
}

fn of_file(keys: &[Value]) -> (tempfile::NamedTempFile, TokenSettings) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json!({ "keys": keys }).to_string()).unwrap();
    let settings = settings(KeySource::File(file.path().to_owned()));
    (file, settings)
}

fn claims() -> Value {
    json!({
        "sub": "ada", "aud": "logs", "iss": "https://id.example.com", "exp": now_s() + 100,
        "nbf": now_s() - 1, "name": "Ada L"
    })
}

fn with(claim: &str, value: Value) -> Value {
    let mut all = claims();
    all[claim] = value;
    all
}

#[test]
fn tokens_of_every_kind_of_public_key_count() {
    let (ec, ed, rsa) = (Signer::ec(), Signer::ed(), Signer::rsa());
    let keys = [ec.public("a"), ed.public("b"), rsa.public("c"), json!({"kty": "new", "kid": "d"})];
    let (_file, settings) = of_file(&keys);
    let tokens = Tokens::open(settings.clone()).unwrap();
    for (signer, algorithm, id) in
        [(&ec, "ES256", "a"), (&ed, "EdDSA", "b"), (&rsa, "RS256", "c"), (&rsa, "PS256", "c")]
    {
        let named = json!({"alg": algorithm, "kid": id, "typ": "at+jwt"});
        let bearer = tokens.check(&signer.token(&named, &claims())).unwrap();
        assert_eq!(bearer.user, "ada", "{algorithm}");
        let lifetime_s = bearer.lifetime.as_secs();
        assert!((100..=130).contains(&lifetime_s), "{lifetime_s}: with the skew of clocks");
        let unnamed = signer.token(&json!({"alg": algorithm}), &claims());
        assert!(tokens.check(&unnamed).is_ok(), "one key would do");
    }
    let many = with("aud", json!(["others", "queues"]));
    let header = json!({"alg": "EdDSA", "kid": "b"});
    assert!(tokens.check(&ed.token(&header, &many)).is_ok());
    let just_over = with("exp", json!(now_s() - 5));
    assert!(tokens.check(&ed.token(&header, &just_over)).is_ok(), "within the skew of clocks");
    let by_name = TokenSettings { user_claim: "name".to_owned(), ..settings.clone() };
    let bearer = Tokens::open(by_name).unwrap().check(&ed.token(&header, &claims())).unwrap();
    assert_eq!(bearer.user, "Ada L");
    let lax = TokenSettings { audience: Vec::new(), issuer: None, ..settings };
    let bare = json!({"sub": "ada", "exp": now_s() + 9});
    assert!(Tokens::open(lax).unwrap().check(&ed.token(&header, &bare)).is_ok());
}

#[test]
fn other_tokens_do_not_count_and_the_reason_is_told() {
    let (ours, theirs) = (Signer::ed(), Signer::ed());
    let (_file, settings) = of_file(&[ours.public("b")]);
    let tokens = Tokens::open(settings).unwrap();
    let header = json!({"alg": "EdDSA", "kid": "b"});
    let good = ours.token(&header, &claims());
    assert!(tokens.check(&good).is_ok());
    let mut parts: Vec<String> = good.split('.').map(str::to_owned).collect();
    parts[1] = base64(with("sub", json!("root")).to_string());
    let unsigned = format!("{}.{}.", base64(json!({"alg": "none"}).to_string()), parts[1]);
    let public = ours.public("b")["x"].as_str().unwrap().to_owned();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, public.as_bytes());
    let begun = format!("{}.{}", base64(json!({"alg": "HS256", "kid": "b"}).to_string()), parts[1]);
    let by_public_key = format!("{begun}.{}", base64(ring::hmac::sign(&key, begun.as_bytes())));
    let of = |claims: &Value| ours.token(&header, claims);
    let without = |claim: &str| {
        let mut all = claims();
        all.as_object_mut().unwrap().remove(claim);
        of(&all)
    };
    for (token, problem) in [
        (String::new(), "it is no token"),
        ("a.b.c".to_owned(), "it is no token"),
        (unsigned, "it is no token"),
        (by_public_key, "no key \"b\" for HS256"),
        (parts.join("."), "InvalidSignature"),
        (theirs.token(&header, &claims()), "InvalidSignature"),
        (theirs.token(&json!({"alg": "EdDSA", "kid": "z"}), &claims()), "no key \"z\""),
        (ours.token(&json!({"alg": "ES256", "kid": "b"}), &claims()), "for ES256"),
        (of(&with("exp", json!(now_s() - 60))), "ExpiredSignature"),
        (of(&with("exp", json!("soon"))), "exp"),
        (without("exp"), "exp"),
        (of(&with("nbf", json!(now_s() + 90))), "ImmatureSignature"),
        (of(&with("nbf", json!("later"))), "nbf"),
        (of(&with("aud", json!("others"))), "InvalidAudience"),
        (without("aud"), "aud"),
        (of(&with("iss", json!("https://id.example.org"))), "InvalidIssuer"),
        (without("iss"), "iss"),
        (of(&with("sub", json!(""))), "no name in sub"),
        (of(&with("sub", json!(7))), "no name in sub"),
        (without("sub"), "no name in sub"),
    ] {
        let error = tokens.check(&token).unwrap_err();
        assert!(error.contains(problem), "{problem}: {error}");
    }
}

#[test]
fn keys_that_sign_nothing_are_refused() {
    let secret = json!({"kty": "oct", "kid": "s", "k": base64("secret")});
    let mut to_encrypt = Signer::ed().public("e");
    to_encrypt["use"] = json!("enc");
    for keys in [vec![], vec![secret], vec![to_encrypt]] {
        let (_file, settings) = of_file(&keys);
        let error = Tokens::open(settings).unwrap_err();
        assert!(error.contains("no key there signs tokens"), "{error}");
    }
    let mut only = Signer::rsa().public("r");
    only["alg"] = json!("PS256");
    let (_file, settings) = of_file(&[only]);
    let tokens = Tokens::open(settings).unwrap();
    let token = |algorithm: &str| Signer::rsa().token(&json!({"alg": algorithm}), &claims());
    assert!(tokens.check(&token("PS256")).is_ok());
    assert!(tokens.check(&token("RS256")).is_err(), "the key is for another algorithm");
}

#[test]
fn keys_are_at_places_where_nobody_can_change_them_on_the_way() {
    for (text, is_right) in [
        ("https://id.example.com/keys", true),
        ("http://127.0.0.1:8080/keys", true),
        ("http://[::1]/keys", true),
        ("http://localhost/keys", true),
        ("file:///etc/keys.json", true),
        ("http://id.example.com/keys", false),
        ("http://127.0.0.1.example.com/keys", false),
        ("file://keys.json", false),
        ("ftp://id.example.com/keys", false),
        ("/etc/keys.json", false),
    ] {
        assert_eq!(KeySource::read(text).is_ok(), is_right, "{text}");
    }
}

/// Answers each request with what is there at the time, and counts.
fn serve(answers: Arc<Mutex<(String, usize)>>) -> String {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", socket.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in socket.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let mut answers = answers.lock().unwrap();
            answers.1 += 1;
            let _ = (&stream).write_all(answers.0.as_bytes());
        }
    });
    url
}

fn answer(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_asked_for_again_when_a_token_names_another_and_stay_while_that_fails() {
    let (first, second) = (Signer::ed(), Signer::ed());
    let keys = |signer: &Signer, id: &str| {
        answer("200 OK", &json!({"keys": [signer.public(id)]}).to_string())
    };
    let answers = Arc::new(Mutex::new((keys(&first, "1"), 0)));
    let settings = settings(KeySource::Server(serve(Arc::clone(&answers))));
    let tokens = Arc::new(Tokens::open(settings).unwrap());
    let (of_first, of_second) = (
        first.token(&json!({"alg": "EdDSA", "kid": "1"}), &claims()),
        second.token(&json!({"alg": "EdDSA", "kid": "2"}), &claims()),
    );
    assert!(tokens.check(&of_first).is_err(), "no keys are here yet");
    let metrics = Arc::new(Metrics::default());
    let keeping = tokio::spawn(Arc::clone(&tokens).keep(Arc::clone(&metrics)));
    let until = async |what: &str, is_so: &dyn Fn() -> bool| {
        for _ in 0..6000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("in vain: {what}");
    };
    until("the keys are here", &|| tokens.check(&of_first).is_ok()).await;
    *answers.lock().unwrap() = (answer("503 Service Unavailable", ""), 0);
    until("the server is asked again", &|| {
        let _ = tokens.check(&of_second);
        metrics.network.token_keys_failed.get() > 0
    })
    .await;
    assert!(tokens.check(&of_first).is_ok(), "the keys stay");
    answers.lock().unwrap().0 = keys(&second, "2");
    until("the new keys are here", &|| tokens.check(&of_second).is_ok()).await;
    assert!(tokens.check(&of_first).is_err(), "the old key is gone");
    keeping.abort();
}

/// Without a bound a client could have the server asked with each token.
#[test]
fn tokens_with_unknown_keys_ask_once_in_a_while() {
    let signer = Signer::ed();
    let (_file, settings) = of_file(&[signer.public("b")]);
    let max = Duration::from_secs(3600);
    let settings = TokenSettings { backoff: (max, max), ..settings };
    let tokens = Tokens::open(settings).unwrap();
    for _ in 0..20 {
        assert!(
            tokens.check(&signer.token(&json!({"alg": "EdDSA", "kid": "z"}), &claims())).is_err()
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let is_asked = runtime.block_on(async {
        tokio::select! {
            biased;
            () = tokens.wanted.notified() => true,
            () = std::future::ready(()) => false,
        }
    });
    assert!(!is_asked, "the keys were read a moment ago");
}
