//! The login of a client, before its first request: frames in and answers out, one at a time.
//!
//! The threads of sockets do this alone: a proof takes tens of microseconds, and a password of PLAIN milliseconds.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use duramen_broker::Event;
use duramen_broker::login::{Login, LoginStep, WhoIs};
use duramen_protocol::EncodedFrame;
use duramen_protocol::sasl::scram::NONCE_BYTES;
use duramen_protocol::wire::Few;
use tokio::time::timeout;

use super::{Connection, End, cut};
use crate::server::chance::random;
use crate::server::framing;
use crate::server::settings::SaslSettings;
use crate::server::threads::{Input, Routed};

/// Longest time that a client may take to show who it is.
const LOGIN_MAX: Duration = Duration::from_secs(10);

impl Connection {
    /// Returns once the client has shown who it is.
    pub(super) async fn log_in(&mut self, sasl: &SaslSettings) -> Result<(), End> {
        let mut stop = self.shared.stop.clone();
        let exchange = timeout(LOGIN_MAX, self.exchange(sasl));
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
            LoginStep::Done(frame, known) => {
                self.shared.metrics.network.logins.inc();
                self.session.be(&known.user);
                // The node hears of the client before its first request.
                let connection = self.session.connection();
                self.shared.node.push(Input::Event(Event::Known { connection, known }));
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
            LoginStep::Send(_) | LoginStep::Ask(_) => unreachable!("the exchange went on"),
        }
    }

    /// Goes on until the last step.
    async fn exchange(&mut self, sasl: &SaslSettings) -> Result<LoginStep, End> {
        let mut login = Login::new(Arc::clone(&sasl.mechanisms));
        loop {
            let frame = self.next_token(sasl.token_bytes_max).await?;
            let mut step = login.on_frame(frame);
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
            let mut freed = pin!(Arc::clone(&self.shared.budget).wait());
            let has_part = !self.buf.is_empty();
            poll_fn(|context| {
                let is_freed = freed.as_mut().poll(context).is_ready();
                let has_room = is_freed || self.charge.has_room(has_part);
                if has_room { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            poll_fn(|context| self.stream.poll_read_ready(context)).await?;
            self.read().await?;
        }
    }

    async fn answer(&mut self, frame: EncodedFrame) -> Result<(), End> {
        let mut parts = Few::new();
        cut(frame, None, &mut parts);
        self.send_parts(&parts).await
    }
}
