//! The login to a broker that asks who its client is: SASL, with PLAIN or SCRAM.

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use duramen_protocol::sasl::scram::{Client as Exchange, NONCE_BYTES};
use duramen_protocol::sasl::{Mechanism, SaslError, plain_token};
use duramen_protocol::wire::Secret;
use ring::rand::{SecureRandom, SystemRandom};

use super::Connection;
use crate::error::Error;
use crate::options::Login;

impl Connection {
    /// Shows the broker who the client is. Fails with [`Error::Refused`] if the broker does not believe it, or has no
    /// such mechanism.
    pub(super) async fn log_in(&self, login: &Login) -> Result<(), Error> {
        let Login { user, mechanism, .. } = login;
        let what = || format!("login of {user} at {}", self.address());
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
        Error::check(what, code, message.as_deref())?;
        let disbelieved = |error: SaslError| {
            let code = ErrorCode::SaslAuthenticationFailed.code();
            Error::refused(what(), code, Some(error.to_string()))
        };
        let Mechanism::Scram(hash) = *mechanism else {
            self.exchange(user, plain_token(user, &login.password)).await?;
            return Ok(());
        };
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut nonce).map_err(|_| {
            disbelieved(SaslError::Refused("the machine has no random bytes for a nonce"))
        })?;
        let (exchange, first) = Exchange::begin(hash, user, login.password.clone(), &nonce);
        let challenge = self.exchange(user, first).await?;
        let (expecting, proof) = exchange.prove(&challenge).map_err(disbelieved)?;
        let proof = self.exchange(user, proof).await?;
        expecting.check(&proof).map_err(disbelieved)
    }

    /// Sends a token, and returns the broker's.
    async fn exchange(&self, user: &str, token: Bytes) -> Result<Bytes, Error> {
        let request = SaslAuthenticateRequest { auth_bytes: Secret(token) };
        let response = self.call(&request).await?;
        let what = || format!("login of {user} at {}", self.address());
        Error::check(what, response.error_code, response.error_message.as_deref())?;
        Ok(response.auth_bytes)
    }
}
