//! Clients that say who they are, in and out of order.

use std::num::NonZeroU32;

use duramen_protocol::messages::ApiVersionsRequest;
use duramen_protocol::sasl::plain_token;
use duramen_protocol::sasl::scram::Client;
use duramen_protocol::{decode_response, encode_request};

use super::*;

const PASSWORD: &[u8] = b"secret";

fn credential(hash: Hash) -> Arc<Credential> {
    let iterations = NonZeroU32::new(4096).unwrap();
    Arc::new(Credential::of_password(hash, PASSWORD, Bytes::from_static(b"salt"), iterations))
}

fn login(mechanisms: &[Mechanism]) -> Login {
    Login::new(mechanisms.into(), [].into())
}

fn frame(request: impl Into<Request>, api_version: i16) -> Bytes {
    let request = request.into();
    let api_key = request.api_key().code();
    let header =
        RequestHeader { api_key, api_version, correlation_id: 7, client_id: Some("c".into()) };
    encode_request(&header, &request).unwrap().bytes.freeze().slice(4..)
}

fn handshake(name: &str, version: i16) -> Bytes {
    frame(SaslHandshakeRequest { mechanism: name.to_owned() }, version)
}

fn token(token: Bytes) -> Bytes {
    frame(SaslAuthenticateRequest { auth_bytes: Secret(token) }, 2)
}

fn read(frame: &EncodedFrame, api: ApiKey, version: i16) -> Response {
    let frame = frame.bytes.clone().freeze().slice(4..);
    let (correlation_id, response) = decode_response(frame, api, version).unwrap();
    assert_eq!(correlation_id, 7);
    response
}

fn chosen(step: &LoginStep, version: i16) -> SaslHandshakeResponse {
    let (LoginStep::Send(frame) | LoginStep::Refuse(Some(frame), _)) = step else {
        panic!("{step:?}")
    };
    match read(frame, ApiKey::SaslHandshake, version) {
        Response::SaslHandshake(response) => response,
        other => panic!("{other:?}"),
    }
}

fn authenticated(frame: &EncodedFrame) -> SaslAuthenticateResponse {
    match read(frame, ApiKey::SaslAuthenticate, 2) {
        Response::SaslAuthenticate(response) => response,
        other => panic!("{other:?}"),
    }
}

fn asked(step: LoginStep) -> WhoIs {
    match step {
        LoginStep::Ask(asked) => asked,
        other => panic!("{other:?}"),
    }
}

fn is_closed(step: &LoginStep, text: &str) -> bool {
    matches!(step, LoginStep::Close(reason) if reason.contains(text))
}

#[test]
fn a_client_proves_its_password_by_scram() {
    let hash = Hash::Sha256;
    let mut it = login(&Mechanism::ALL);
    let LoginStep::Send(_) = it.on_frame(frame(ApiVersionsRequest::default(), 0)) else { panic!() };
    let answer = chosen(&it.on_frame(handshake("SCRAM-SHA-256", 1)), 1);
    assert_eq!(answer.error_code, 0);
    assert_eq!(answer.mechanisms, ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"]);
    let (client, first) = Client::begin(hash, "ada", Bytes::from_static(PASSWORD), b"mine");
    let question = asked(it.on_frame(token(first)));
    assert_eq!((question.user.as_str(), question.wanted), ("ada", &[hash][..]));
    assert!(!it.takes_long());
    let LoginStep::Send(frame) = it.on_credential(credential(hash), b"yours") else { panic!() };
    let (expecting, last) = client.prove(&authenticated(&frame).auth_bytes).unwrap();
    let LoginStep::Done(frame, admission) = it.on_frame(token(last)) else { panic!() };
    assert_eq!(expecting.check(&authenticated(&frame).auth_bytes), Ok(()));
    assert_eq!(authenticated(&frame).session_lifetime_ms, 0);
    let expected = Admission {
        user: "ada".to_owned(),
        credential: Some(credential(hash)),
        mechanism: Mechanism::Scram(hash),
        lifetime: None,
    };
    assert_eq!(admission, expected);
}

#[test]
fn a_client_sends_its_password_by_plain_and_a_wrong_one_is_refused_without_a_reason() {
    for (password, is_right) in [(PASSWORD, true), (b"wrong", false)] {
        let mut it = login(&[Mechanism::Plain]);
        chosen(&it.on_frame(handshake("PLAIN", 1)), 1);
        let question = asked(it.on_frame(token(plain_token("ada", password))));
        assert_eq!((question.user.as_str(), question.wanted), ("ada", &Hash::ALL[..]));
        assert!(it.takes_long());
        match it.on_credential(credential(Hash::Sha512), b"") {
            LoginStep::Done(frame, known) if is_right => {
                assert_eq!((authenticated(&frame).error_code, known.user.as_str()), (0, "ada"));
            }
            LoginStep::Refuse(Some(frame), reason) if !is_right => {
                let answer = authenticated(&frame);
                assert_eq!(answer.error_code, ErrorCode::SaslAuthenticationFailed.code());
                assert_eq!(answer.error_message.as_deref(), Some("Authentication failed"));
                assert!(reason.contains("no such user"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        let after = it.on_frame(token(plain_token("ada", PASSWORD)));
        assert!(is_closed(&after, "nobody asked for"), "one try a connection: {after:?}");
    }
}

/// Clients before KIP-152 send tokens as they are.
#[test]
fn tokens_may_come_without_a_request_around_them() {
    let mut it = login(&[Mechanism::Plain]);
    assert_eq!(chosen(&it.on_frame(handshake("PLAIN", 0)), 0).error_code, 0);
    asked(it.on_frame(plain_token("ada", PASSWORD)));
    let LoginStep::Done(frame, _) = it.on_credential(credential(Hash::Sha512), b"") else {
        panic!()
    };
    assert_eq!(&frame.bytes[..], [0; 4], "an empty token");
    let hash = Hash::Sha512;
    let mut it = login(&[Mechanism::Scram(hash)]);
    it.on_frame(handshake("SCRAM-SHA-512", 0));
    let (client, first) = Client::begin(hash, "ada", Bytes::from_static(b"wrong"), b"mine");
    asked(it.on_frame(first));
    let LoginStep::Send(frame) = it.on_credential(credential(hash), b"yours") else { panic!() };
    let (_, last) = client.prove(&frame.bytes[4..]).unwrap();
    assert!(matches!(it.on_frame(last), LoginStep::Refuse(None, _)), "the old form has no error");
}

#[test]
fn whatever_is_out_of_order_closes_the_connection() {
    let first = login(&Mechanism::ALL).on_frame(token(plain_token("ada", PASSWORD)));
    assert!(is_closed(&first, "before SaslHandshake"), "{first:?}");
    let produce = Bytes::from_static(b"\0\0\0\x09\0\0\0\x01\xff\xff");
    for bytes in [&produce[..], b"", b"\0", b"\x7f\xff\0\0\0\0\0\0"] {
        let step = login(&Mechanism::ALL).on_frame(Bytes::copy_from_slice(bytes));
        assert!(is_closed(&step, "has to say who it is"), "{step:?}");
    }
    let mut it = login(&Mechanism::ALL);
    it.on_frame(handshake("PLAIN", 1));
    let again = it.on_frame(handshake("PLAIN", 1));
    assert!(is_closed(&again, "again"), "{again:?}");
    let mut it = login(&[Mechanism::Plain]);
    let step = it.on_frame(handshake("SCRAM-SHA-256", 1));
    let answer = chosen(&step, 1);
    assert_eq!(answer.error_code, ErrorCode::UnsupportedSaslMechanism.code());
    assert_eq!(answer.mechanisms, ["PLAIN"]);
    let after = it.on_frame(token(plain_token("ada", PASSWORD)));
    assert!(is_closed(&after, "nobody asked for"), "{after:?}");
    let mut it = login(&[Mechanism::Plain]);
    it.on_frame(handshake("PLAIN", 1));
    let step = it.on_frame(token(Bytes::from_static(b"no token")));
    assert!(matches!(step, LoginStep::Refuse(Some(_), _)), "{step:?}");
    let step = it.on_credential(credential(Hash::Sha512), b"");
    assert!(is_closed(&step, "nobody asked for"), "{step:?}");
}

#[test]
fn a_version_of_api_versions_that_is_unknown_is_answered_as_ever() {
    let mut it = login(&Mechanism::ALL);
    let bytes = b"\0\x12\0\x63\0\0\0\x07\xff\xff";
    let LoginStep::Send(frame) = it.on_frame(Bytes::from_static(bytes)) else { panic!() };
    assert_eq!(&frame.bytes[8..10], ErrorCode::UnsupportedVersion.code().to_be_bytes());
}

fn bearer(it: &mut Login, message: &str) -> LoginStep {
    it.on_frame(handshake("OAUTHBEARER", 1));
    it.on_frame(token(Bytes::copy_from_slice(message.as_bytes())))
}

const MESSAGE: &str = "n,,\u{1}auth=Bearer a.b.c\u{1}\u{1}";

#[test]
fn the_owner_of_a_token_comes_in_for_as_long_as_the_token_counts() {
    let second = Duration::from_secs(1);
    let found = || Ok(Bearer { user: "ada".to_owned(), lifetime: second * 30 });
    for (lifetime_max, expected) in [(None, 30), (Some(second * 20), 20), (Some(second * 40), 30)] {
        let mut it = Login::new(
            [Mechanism::OAuthBearer].into(),
            lifetime_max.map(|it| (Mechanism::OAuthBearer, it)).into_iter().collect(),
        );
        let LoginStep::Verify(Secret(text)) = bearer(&mut it, MESSAGE) else { panic!() };
        assert_eq!(&text[..], b"a.b.c");
        let question = asked(it.on_bearer(found()));
        assert_eq!((question.user.as_str(), question.wanted), ("ada", &[][..]));
        let step = it.on_credential(credential(Hash::Sha512), b"");
        let LoginStep::Done(frame, admission) = step else { panic!("{step:?}") };
        assert_eq!(authenticated(&frame).session_lifetime_ms, i64::from(expected) * 1000);
        assert_eq!(admission.lifetime, Some(second * expected));
        assert_eq!((admission.user.as_str(), admission.credential), ("ada", None));
    }
    let mut it = login(&[Mechanism::OAuthBearer]);
    bearer(&mut it, &MESSAGE.replace("n,,", "n,a=root,"));
    assert!(matches!(it.on_bearer(found()), LoginStep::Refuse(Some(_), _)), "another's name");
}

/// RFC 7628 has the client hear of the problem, and answer, before the end.
#[test]
fn a_token_that_does_not_count_is_told_so_and_then_refused() {
    let mut it = login(&[Mechanism::OAuthBearer]);
    assert!(is_closed(&it.on_bearer(Err(String::new())), "nobody sent"));
    let mut it = login(&[Mechanism::OAuthBearer]);
    bearer(&mut it, MESSAGE);
    let step = it.on_bearer(Err("it is old".to_owned()));
    let LoginStep::Send(frame) = step else { panic!("{step:?}") };
    assert_eq!(&authenticated(&frame).auth_bytes[..], br#"{"status":"invalid_token"}"#);
    let step = it.on_frame(token(Bytes::from_static(b"\x01")));
    let LoginStep::Refuse(Some(frame), reason) = step else { panic!("{step:?}") };
    let code = ErrorCode::SaslAuthenticationFailed.code();
    assert_eq!((authenticated(&frame).error_code, reason.as_str()), (code, "it is old"));
    let after = it.on_frame(token(Bytes::from_static(MESSAGE.as_bytes())));
    assert!(is_closed(&after, "nobody asked for"), "{after:?}");
    let mut it = login(&[Mechanism::OAuthBearer]);
    assert!(matches!(bearer(&mut it, "n,,"), LoginStep::Refuse(Some(_), _)));
}

#[test]
fn a_client_that_shows_again_who_it_is_stays_the_same_user_by_the_same_mechanism() {
    let begun = |name: &str| {
        let mut it = Login::again(Mechanism::Plain, [].into(), "ada".to_owned());
        let step = it.on_frame(handshake(name, 1));
        (it, step)
    };
    for (user, is_same) in [("ada", true), ("bob", false)] {
        let (mut it, _) = begun("PLAIN");
        asked(it.on_frame(token(plain_token(user, PASSWORD))));
        match it.on_credential(credential(Hash::Sha512), b"") {
            LoginStep::Done(..) if is_same => {}
            LoginStep::Refuse(Some(_), reason) if !is_same => {
                assert!(reason.contains("another user"), "{reason}");
            }
            other => panic!("{user}: {other:?}"),
        }
    }
    let (_, step) = begun("SCRAM-SHA-512");
    assert_eq!(chosen(&step, 1).error_code, ErrorCode::UnsupportedSaslMechanism.code());
    assert!(matches!(step, LoginStep::Refuse(..)));
}
