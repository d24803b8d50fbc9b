//! # Room card: login
//!
//! Purpose:    what a client says before its first request, where a listener wants to know who it is.
//! Owns:       the order of `ApiVersions`, `SaslHandshake` and `SaslAuthenticate` (KIP-43, KIP-152), their answers, the
//!             exchange of one client; the time until it has to show again who it is (KIP-368).
//! Interface:  [`Login::on_frame`], [`Login::on_credential`], [`Login::on_bearer`].
//! Invariants: nothing else is decoded before the client is known; one exchange a connection, one question to the node.
//! Never:      sockets, time, chance: the caller gives the nonce; which users there are (`users`).
//! Tests:      below; `compat/security`; `fuzz/`.
//! Start at:   [`Login::on_frame`].

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use duramen_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use duramen_protocol::sasl::scram::{Challenge, ClientFirst, Credential, Hash, client_first};
use duramen_protocol::sasl::{Mechanism, bearer, read_plain};
use duramen_protocol::wire::Secret;
use duramen_protocol::{
    ApiKey, DecodeError, EncodedFrame, ErrorCode, Request, RequestHeader, Response, decode_request,
    encode_response,
};

use crate::api_versions;

/// First version of `SaslHandshake` after which tokens travel in `SaslAuthenticate`, and not as they are (KIP-152).
const TOKENS_IN_REQUESTS_FROM: i16 = 1;

/// Client that has shown who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The user.
    pub user: String,
    /// Credential by which it showed that.
    pub credential: Arc<Credential>,
}

/// Question to the node: which credential has this user?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhoIs {
    /// The user.
    pub user: String,
    /// Mechanisms whose credential would do, the better one first. None for a client with a token: the node only says
    /// that it lets clients in.
    pub wanted: &'static [Hash],
}

/// Owner of a token that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// The user.
    pub user: String,
    /// Time for which the token still counts.
    pub lifetime: Duration,
}

/// Result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The user.
    pub user: String,
    /// Credential by which the client showed that it is the user. None where a token did.
    pub credential: Option<Arc<Credential>>,
    /// Mechanism of the login.
    pub mechanism: Mechanism,
    /// Time until the client has to show again who it is, if it has to.
    pub lifetime: Option<Duration>,
}

/// Result of a frame, or of the node's answer.
#[derive(Debug)]
pub enum LoginStep {
    /// Send this, and go on.
    Send(EncodedFrame),
    /// Ask the node, and go on with [`Login::on_credential`].
    Ask(WhoIs),
    /// Look whether this token counts, and go on with [`Login::on_bearer`].
    Verify(Secret),
    /// Send this, and then serve the client.
    Done(EncodedFrame, Admission),
    /// The client is not who it says: wait a while, send this if there is something, and close the connection.
    Refuse(Option<EncodedFrame>, String),
    /// The client speaks another language: close the connection.
    Close(String),
}

/// Place of the next token, and of its answer.
#[derive(Clone, Debug)]
enum Form {
    /// In `SaslAuthenticate`; its correlation id and version, once one is here.
    Request(i32, i16),
    /// As it is, with a length before it.
    Bare,
}

#[derive(Debug)]
enum State {
    Begins,
    Chosen(Mechanism),
    AsksPlain {
        user: String,
        password: Secret,
    },
    AsksScram(ClientFirst),
    Challenged(String, Box<Challenge>),
    /// A token is looked at. The name is the one that the client wants to act for.
    Verifies(String),
    AsksBearer(Bearer),
    /// The client has heard that its token does not count.
    Disbelieved(String),
    Ended,
}

/// One client's exchange.
#[derive(Debug)]
pub struct Login {
    mechanisms: Arc<[Mechanism]>,
    mechanism: Mechanism,
    /// `connections.max.reauth.ms` of the mechanisms that have a limit.
    lifetimes: Arc<[(Mechanism, Duration)]>,
    /// User that the client has shown to be before, if it has.
    before: Option<String>,
    form: Form,
    state: State,
}

impl Login {
    /// Begins with a client that may choose from these mechanisms. `lifetimes` are the times after which a client has
    /// to show again who it is.
    ///
    /// # Panics
    ///
    /// If there is no mechanism.
    pub fn new(mechanisms: Arc<[Mechanism]>, lifetimes: Arc<[(Mechanism, Duration)]>) -> Self {
        let (mechanism, form) = (mechanisms[0], Form::Request(0, 0));
        Self { mechanisms, mechanism, lifetimes, before: None, form, state: State::Begins }
    }

    /// Begins again with a client that has shown to be a user: it has to stay that one (KIP-368).
    pub fn again(
        mechanism: Mechanism,
        lifetimes: Arc<[(Mechanism, Duration)]>,
        user: String,
    ) -> Self {
        Self { before: Some(user), ..Self::new([mechanism].into(), lifetimes) }
    }

    /// Takes one frame, without its length.
    pub fn on_frame(&mut self, frame: Bytes) -> LoginStep {
        if matches!(
            (&self.form, &self.state),
            (Form::Bare, State::Chosen(_) | State::Challenged(..) | State::Disbelieved(_))
        ) {
            return self.on_token(&frame);
        }
        let key = frame.first_chunk().map(|key| i16::from_be_bytes(*key));
        let expected = [ApiKey::ApiVersions, ApiKey::SaslHandshake, ApiKey::SaslAuthenticate];
        if !key.is_some_and(|key| expected.iter().any(|api| api.code() == key)) {
            return LoginStep::Close(
                "the client has to say who it is (SASL) before its first request".to_owned(),
            );
        }
        match decode_request(frame) {
            Ok((header, Request::ApiVersions(request))) => {
                let answer = api_versions::answer(&request, header.api_version);
                send(&header, &answer.into())
            }
            Ok((header, Request::SaslHandshake(request))) => self.on_handshake(&header, &request),
            Ok((header, Request::SaslAuthenticate(request))) => {
                self.form = Form::Request(header.correlation_id, header.api_version);
                let SaslAuthenticateRequest { auth_bytes: Secret(token) } = request;
                self.on_token(&token)
            }
            Ok((header, request)) => {
                unreachable!("{} has the key of {:?}", header.api_key, request.api_key())
            }
            Err(DecodeError::UnsupportedVersion { mut header })
                if header.api() == Some(ApiKey::ApiVersions) =>
            {
                header.api_version = 0;
                send(&header, &api_versions::unsupported_version().into())
            }
            Err(error) => LoginStep::Close(error.to_string()),
        }
    }

    fn on_handshake(
        &mut self,
        header: &RequestHeader,
        request: &SaslHandshakeRequest,
    ) -> LoginStep {
        if !matches!(self.state, State::Begins) {
            return LoginStep::Close("the client chooses a mechanism again".to_owned());
        }
        let names = self.mechanisms.iter().map(|it| it.name().to_owned()).collect();
        let mut answer = SaslHandshakeResponse { error_code: 0, mechanisms: names };
        let chosen = Mechanism::from_name(&request.mechanism);
        let Some(chosen) = chosen.filter(|it| self.mechanisms.contains(it)) else {
            answer.error_code = ErrorCode::UnsupportedSaslMechanism.code();
            let reason = format!("the mechanism {:?} is not enabled", request.mechanism);
            self.state = State::Ended;
            return LoginStep::Refuse(encoded(header, &answer.into()).ok(), reason);
        };
        (self.state, self.mechanism) = (State::Chosen(chosen), chosen);
        if header.api_version < TOKENS_IN_REQUESTS_FROM {
            self.form = Form::Bare;
        }
        send(header, &answer.into())
    }

    fn on_token(&mut self, token: &[u8]) -> LoginStep {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Chosen(Mechanism::Plain) => match read_plain(token) {
                Ok((user, password)) => {
                    let password = Secret(Bytes::copy_from_slice(password));
                    let user = user.to_owned();
                    self.state = State::AsksPlain { user: user.clone(), password };
                    LoginStep::Ask(WhoIs { user, wanted: &Hash::ALL })
                }
                Err(error) => self.refuse(&error.to_string()),
            },
            State::Chosen(Mechanism::Scram(hash)) => match client_first(token) {
                Ok(first) => {
                    let user = first.user.clone();
                    self.state = State::AsksScram(first);
                    let wanted = match hash {
                        Hash::Sha256 => &[Hash::Sha256],
                        Hash::Sha512 => &[Hash::Sha512],
                    };
                    LoginStep::Ask(WhoIs { user, wanted })
                }
                Err(error) => self.refuse(&error.to_string()),
            },
            State::Chosen(Mechanism::OAuthBearer) => match bearer::read(token) {
                Ok(first) => {
                    self.state = State::Verifies(first.authorization);
                    LoginStep::Verify(Secret(Bytes::copy_from_slice(first.token.as_bytes())))
                }
                Err(error) => self.refuse(&error.to_string()),
            },
            State::Challenged(user, challenge) => match challenge.check(token) {
                Ok((credential, proof)) => {
                    self.admit(proof, user, Some(Arc::new(credential)), None)
                }
                Err(error) => self.refuse(&error.to_string()),
            },
            // RFC 7628 has the client answer with one byte; whatever it says, this is the end.
            State::Disbelieved(reason) => self.refuse(&reason),
            State::Begins => LoginStep::Close("a token came before SaslHandshake".to_owned()),
            State::AsksPlain { .. }
            | State::AsksScram(_)
            | State::Verifies(_)
            | State::AsksBearer(_)
            | State::Ended => LoginStep::Close("a token came that nobody asked for".to_owned()),
        }
    }

    /// Tells whether [`Login::on_credential`] takes milliseconds: it stretches a password.
    pub fn takes_long(&self) -> bool {
        matches!(self.state, State::AsksPlain { .. })
    }

    /// Goes on with the node's answer. `nonce` is new, and nobody can guess it.
    pub fn on_credential(&mut self, credential: Arc<Credential>, nonce: &[u8]) -> LoginStep {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::AsksPlain { user, password } => {
                if !credential.fits(&password.0) {
                    return self.refuse("the password is wrong, or there is no such user");
                }
                self.admit(Bytes::new(), user, Some(credential), None)
            }
            State::AsksBearer(Bearer { user, lifetime }) => {
                self.admit(Bytes::new(), user, None, Some(lifetime))
            }
            State::AsksScram(first) => {
                let user = first.user.clone();
                let (challenge, token) = first.challenge((*credential).clone(), nonce);
                self.state = State::Challenged(user, Box::new(challenge));
                self.answer(token, None, LoginStep::Send)
            }
            _ => LoginStep::Close("an answer came that nobody asked for".to_owned()),
        }
    }

    /// Goes on with the owner of the token, or with the reason for which it does not count.
    pub fn on_bearer(&mut self, found: Result<Bearer, String>) -> LoginStep {
        let State::Verifies(authorization) = std::mem::replace(&mut self.state, State::Ended)
        else {
            return LoginStep::Close("a token was looked at that nobody sent".to_owned());
        };
        match found {
            Ok(bearer) if authorization.is_empty() || authorization == bearer.user => {
                let user = bearer.user.clone();
                self.state = State::AsksBearer(bearer);
                LoginStep::Ask(WhoIs { user, wanted: &[] })
            }
            Ok(_) => self.refuse("a client may not act for another user"),
            Err(reason) => {
                self.state = State::Disbelieved(reason);
                let token = Bytes::from_static(bearer::INVALID_TOKEN);
                self.answer(token, None, LoginStep::Send)
            }
        }
    }

    fn admit(
        &mut self,
        token: Bytes,
        user: String,
        credential: Option<Arc<Credential>>,
        lifetime: Option<Duration>,
    ) -> LoginStep {
        if self.before.as_ref().is_some_and(|before| *before != user) {
            return self.refuse("a client may not become another user");
        }
        let own = self.lifetimes.iter().find(|(mechanism, _)| *mechanism == self.mechanism);
        let lifetime = lifetime.into_iter().chain(own.map(|(_, it)| *it)).min();
        let admission = Admission { user, credential, mechanism: self.mechanism, lifetime };
        self.answer(token, lifetime, |frame| LoginStep::Done(frame, admission))
    }

    fn answer(
        &self,
        token: Bytes,
        lifetime: Option<Duration>,
        step: impl FnOnce(EncodedFrame) -> LoginStep,
    ) -> LoginStep {
        match &self.form {
            Form::Request(correlation_id, version) => {
                let lifetime_ms = lifetime.map_or(0, |it| it.as_millis());
                let answer = SaslAuthenticateResponse {
                    auth_bytes: token,
                    session_lifetime_ms: i64::try_from(lifetime_ms).unwrap_or(i64::MAX),
                    ..Default::default()
                };
                match encode_response(*correlation_id, &answer.into(), *version) {
                    Ok(frame) => step(frame),
                    Err(error) => LoginStep::Close(error.to_string()),
                }
            }
            Form::Bare => {
                let mut bytes = BytesMut::with_capacity(4 + token.len());
                bytes.put_u32(u32::try_from(token.len()).expect("a token is short"));
                bytes.put(token);
                step(EncodedFrame { bytes, holes: Vec::new() })
            }
        }
    }

    /// Ends the exchange. The client learns no reason: a stranger would learn whose names are right.
    fn refuse(&mut self, reason: &str) -> LoginStep {
        let frame = match &self.form {
            Form::Request(correlation_id, version) => {
                let answer = SaslAuthenticateResponse {
                    error_code: ErrorCode::SaslAuthenticationFailed.code(),
                    error_message: Some("Authentication failed".to_owned()),
                    ..Default::default()
                };
                encode_response(*correlation_id, &answer.into(), *version).ok()
            }
            Form::Bare => None,
        };
        LoginStep::Refuse(frame, reason.to_owned())
    }
}

fn encoded(header: &RequestHeader, response: &Response) -> Result<EncodedFrame, String> {
    encode_response(header.correlation_id, response, header.api_version)
        .map_err(|it| it.to_string())
}

fn send(header: &RequestHeader, response: &Response) -> LoginStep {
    encoded(header, response).map_or_else(LoginStep::Close, LoginStep::Send)
}

#[cfg(test)]
mod tests;
