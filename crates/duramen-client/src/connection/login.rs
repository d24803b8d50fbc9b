//! The login to a broker that asks who its client is: SASL, with PLAIN, SCRAM or OAUTHBEARER.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use duramen_protocol::sasl::scram::{Client as Exchange, Hash, NONCE_BYTES};
use duramen_protocol::sasl::{Mechanism, SaslError, bearer, plain_token};
use duramen_protocol::wire::Secret;
use ring::rand::{SecureRandom, SystemRandom};

use super::entry::Entry;
use crate::error::Error;
use crate::options::Login;

/// Longest token, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

impl Entry<'_> {
    /// Shows the broker who the client is. Fails with [`Error::Refused`] if the broker does not believe it, or has no
    /// such mechanism.
    pub(super) async fn log_in(&mut self, login: &Login) -> Result<(), Error> {
        match login {
            Login::Password { user, password, mechanism } => {
                self.choose(user, *mechanism).await?;
                let Mechanism::Scram(hash) = *mechanism else {
                    self.exchange(user, plain_token(user, password)).await?;
                    return Ok(());
                };
                self.prove(user, password, hash).await
            }
            Login::Token(path) => {
                let whose = format!("the token in {}", path.display());
                let token =
                    read(path).map_err(|problem| disbelieved((&whose, self.address), problem))?;
                self.choose(&whose, Mechanism::OAuthBearer).await?;
                let problem = self.exchange(&whose, bearer::message(&token)).await?;
                if problem.is_empty() {
                    return Ok(());
                }
                // The broker says more once it is answered (RFC 7628, 3.2.3).
                self.exchange(&whose, Bytes::from_static(b"\x01")).await?;
                let reason = "the broker does not believe it".to_owned();
                Err(disbelieved((&whose, self.address), reason))
            }
        }
    }

    /// Names the mechanism of what follows.
    async fn choose(&mut self, user: &str, mechanism: Mechanism) -> Result<(), Error> {
        let address = self.address;
        let what = || format!("login of {user} at {address}");
        let request = SaslHandshakeRequest { mechanism: mechanism.name().to_owned() };
        let response = self.call(&request).await?;
        let code = response.error_code;
        let message = match ErrorCode::from_code(code) {
            Some(ErrorCode::UnsupportedSaslMechanism) => {
                let offered = response.mechanisms.join(", ");
                Some(format!("the broker takes {offered}, and not {mechanism}"))
            }
            Some(ErrorCode::IllegalSaslState) => {
                Some("the listener asks nobody who they are: leave out the user".to_owned())
            }
            _ => None,
        };
        Error::check(what, code, message.as_deref())
    }

    /// Proves a password by SCRAM, and has the broker prove that it knows the user.
    async fn prove(&mut self, user: &str, password: &Bytes, hash: Hash) -> Result<(), Error> {
        let address = self.address;
        let disbelieved = |error: SaslError| disbelieved((user, address), error.to_string());
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut nonce).map_err(|_| {
            disbelieved(SaslError::Refused("the machine has no random bytes for a nonce"))
        })?;
        let (exchange, first) = Exchange::begin(hash, user, password.clone(), &nonce);
        let challenge = self.exchange(user, first).await?;
        let (expecting, proof) = exchange.prove(&challenge).map_err(disbelieved)?;
        let proof = self.exchange(user, proof).await?;
        expecting.check(&proof).map_err(disbelieved)
    }

    /// Sends a token, and returns the broker's.
    async fn exchange(&mut self, user: &str, token: Bytes) -> Result<Bytes, Error> {
        let request = SaslAuthenticateRequest { auth_bytes: Secret(token) };
        let response = self.call(&request).await?;
        let what = || format!("login of {user} at {}", self.address);
        Error::check(what, response.error_code, response.error_message.as_deref())?;
        Ok(response.auth_bytes)
    }
}

fn disbelieved((user, address): (&str, &str), reason: String) -> Error {
    let code = ErrorCode::SaslAuthenticationFailed.code();
    Error::refused(format!("login of {user} at {address}"), code, Some(reason))
}

/// Reads a token, or says why there is none.
fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    match text.trim() {
        _ if text.len() as u64 > TOKEN_BYTES_MAX => {
            Err("the file is too long for a token".to_owned())
        }
        "" => Err("the file is empty".to_owned()),
        token => Ok(token.to_owned()),
    }
}
