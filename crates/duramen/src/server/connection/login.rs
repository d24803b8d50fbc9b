//! The login of a client, before its first request and again from time to time (KIP-368): frames in and answers out,
//! one at a time.
//!
//! The threads of sockets do this alone: a proof takes tens of microseconds, and a password of PLAIN milliseconds.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duramen_broker::Event;
use duramen_broker::login::{Admission, Known, Login, LoginStep, WhoIs};
use duramen_protocol::sasl::Mechanism;
use duramen_protocol::sasl::scram::NONCE_BYTES;
use duramen_protocol::wire::{Few, Secret};
use duramen_protocol::{ApiKey, EncodedFrame};
use tokio::time::{Instant, timeout};

use super::{Connection, End, cut};
use crate::server::chance::random;
use crate::server::framing;
use crate::server::settings::SaslSettings;
use crate::server::threads::{Input, Routed};
use crate::server::tokens::Tokens;

/// Longest time that a client may take to show who it is.
const LOGIN_MAX: Duration = Duration::from_secs(10);

/// Shortest time between two logins of a client, as in Kafka.
const AGAIN_MIN: Duration = Duration::from_secs(1);

/// Means by which a listener asks its clients who they are.
#[derive(Clone, Debug)]
pub struct Asking {
    /// Settings of the listener.
    pub settings: Arc<SaslSettings>,
    /// Check of tokens, if clients may show some.
    pub tokens: Option<Arc<Tokens>>,
}

/// A client's last login.
#[derive(Debug)]
pub(super) struct LastLogin {
    user: String,
    mechanism: Mechanism,
    at: Instant,
    /// Time until which the client has to show again who it is, if it has to.
    ends: Option<Instant>,
}

impl Connection {
    /// Tells whether the next frame begins a login, of a client that has to show again who it is. Fails if it does
    /// not, and the time is over.
    pub(super) fn begins_login(&self) -> Result<bool, End> {
        let Some(LastLogin { at, ends: Some(ends), .. }) = &self.login else { return Ok(false) };
        let Some(key) = framing::api_key(&self.buf) else { return Ok(false) };
        let now = Instant::now();
        if key == ApiKey::SaslHandshake.code() && *at + AGAIN_MIN <= now {
            return Ok(true);
        }
        if *ends <= now { Err(self.expired()) } else { Ok(false) }
    }

    /// Returns the time at which the login ends.
    pub(super) fn login_ends(&self) -> Option<Instant> {
        self.login.as_ref().and_then(|it| it.ends)
    }

    /// Counts a connection whose client has not shown again who it is.
    pub(super) fn expired(&self) -> End {
        self.shared.metrics.network.logins_expired.inc();
        End::Closed("the client did not show again who it is in time".to_owned())
    }

    /// Returns once the client has shown who it is.
    pub(super) async fn log_in(&mut self, asking: &Asking) -> Result<(), End> {
        let sasl = &asking.settings;
        let mut stop = self.shared.stop.clone();
        let exchange = timeout(LOGIN_MAX, self.exchange(asking));
        let outcome = tokio::select! {
            outcome = exchange => outcome,
            _ = stop.wait_for(|stop| *stop) => {
                return Err(End::Closed("the server stops".to_owned()));
            }
        };
        let Ok(step) = outcome else {
            let seconds = LOGIN_MAX.as_secs();
            return Err(End::Closed(format!(
                "the client did not say who it is within {seconds} s"
            )));
        };
        match step? {
            LoginStep::Done(frame, admission) => {
                self.admit(admission);
                self.answer(frame).await
            }
            LoginStep::Refuse(frame, reason) => {
                self.shared.metrics.network.logins_failed.inc();
                tokio::time::sleep(sasl.failure_delay).await;
                if let Some(frame) = frame {
                    self.answer(frame).await?;
                }
                Err(End::Refused(reason))
            }
            LoginStep::Close(reason) => Err(End::Malformed(reason)),
            LoginStep::Send(_) | LoginStep::Ask(_) | LoginStep::Verify(_) => {
                unreachable!("the exchange went on")
            }
        }
    }

    /// Takes the client for the user that it has shown to be.
    fn admit(&mut self, Admission { user, credential, mechanism, lifetime }: Admission) {
        self.shared.metrics.network.logins.inc();
        self.session.be(&user);
        if let Some(credential) = credential {
            // The node hears of the client before its first request.
            let (connection, user) = (self.session.connection(), user.clone());
            let known = Known { user, credential };
            self.shared.node.push(Input::Event(Event::Known { connection, known }));
        }
        let at = Instant::now();
        let ends = lifetime.map(|it| at + it);
        self.login = Some(LastLogin { user, mechanism, at, ends });
    }

    /// Goes on until the last step.
    async fn exchange(&mut self, asking: &Asking) -> Result<LoginStep, End> {
        let sasl = &asking.settings;
        let lifetimes = Arc::clone(&sasl.lifetimes);
        let mut login = match &self.login {
            None => Login::new(Arc::clone(&sasl.mechanisms), lifetimes),
            Some(last) => Login::again(last.mechanism, lifetimes, last.user.clone()),
        };
        loop {
            let frame = self.next_token(sasl.token_bytes_max).await?;
            let mut step = login.on_frame(frame);
            if let LoginStep::Verify(Secret(token)) = &step {
                let token = std::str::from_utf8(token).unwrap_or_default();
                let tokens = asking.tokens.as_ref().ok_or("there are no keys");
                step =
                    login.on_bearer(tokens.map_err(str::to_owned).and_then(|it| it.check(token)));
            }
            if let LoginStep::Ask(asked) = step {
                step = self.ask(&mut login, asked).await?;
            }
            match step {
                LoginStep::Send(frame) => self.answer(frame).await?,
                last => return Ok(last),
            }
        }
    }

    /// Asks the node for a user's credential, and goes on with it.
    async fn ask(&mut self, login: &mut Login, asked: WhoIs) -> Result<LoginStep, End> {
        let connection = self.session.connection();
        self.shared.node.push(Input::Event(Event::WhoIs { connection, asked }));
        let credential = match self.replies.recv().await {
            Some(Routed::Credential(credential)) => credential,
            Some(Routed::Close(reason)) => return Err(End::Closed(reason)),
            Some(Routed::Reply(..)) => {
                return Err(End::Closed("an answer came before any request".to_owned()));
            }
            None => return Err(End::Gone),
        };
        let nonce: [u8; NONCE_BYTES] = random().map_err(|it| End::Closed(it.to_string()))?;
        if login.takes_long() {
            let checking = Arc::clone(&self.shared.checking);
            return Ok(checking.on_password(|| login.on_credential(credential, &nonce)).await);
        }
        Ok(login.on_credential(credential, &nonce))
    }

    /// Reads until a whole token is here.
    async fn next_token(&mut self, token_max: u32) -> Result<Bytes, End> {
        loop {
            let frame = framing::next_token(&mut self.buf, token_max)
                .map_err(|error| End::Malformed(error.to_string()))?;
            if let Some(frame) = frame {
                self.charge.end_frame();
                return Ok(frame);
            }
            let has_part = !self.buf.is_empty();
            let mut room = None;
            poll_fn(|context| self.poll_readable(has_part, &mut room, context)).await?;
            self.read().await?;
        }
    }

    async fn answer(&mut self, frame: EncodedFrame) -> Result<(), End> {
        let mut parts = Few::new();
        cut(frame, None, &mut parts);
        self.send_parts(&parts).await
    }
}
