//! Any bytes as the frames of a client that says who it is: nobody gets in whose password the broker does not have.

use std::sync::Arc;

use bytes::Bytes;
use duramen_broker::login::{Login, LoginStep};
use duramen_protocol::sasl::Mechanism;
use duramen_protocol::sasl::scram::Credential;

/// Most frames of one input.
const FRAMES_MAX: usize = 8;

/// Cuts an input into frames, each behind its length in two bytes, and plays the broker. Panics on a find.
pub fn run(data: &[u8]) {
    let mut login = Login::new(Mechanism::ALL.into(), [].into());
    let mut rest = data;
    for _ in 0..FRAMES_MAX {
        let [high, low, behind @ ..] = rest else { return };
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (frame, after) = behind.split_at(len);
        rest = after;
        let mut step = login.on_frame(Bytes::copy_from_slice(frame));
        if let LoginStep::Verify(_) = step {
            step = login.on_bearer(Err("nobody signed it".to_owned()));
        }
        if let LoginStep::Ask(asked) = step {
            let hash = asked.wanted[0];
            // As quick as can be: a password is stretched once.
            let nobody = Credential::of_nobody(hash, b"secret", &asked.user);
            let credential = Arc::new(Credential { iterations: 1, ..nobody });
            step = login.on_credential(credential, b"nonce");
        }
        match step {
            LoginStep::Send(_) => {}
            LoginStep::Done(_, admission) => panic!("{} got in", admission.user),
            LoginStep::Ask(_) | LoginStep::Verify(_) => {
                panic!("one question was answered with another")
            }
            LoginStep::Refuse(..) | LoginStep::Close(_) => return,
        }
    }
}
