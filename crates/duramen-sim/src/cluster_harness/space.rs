//! Disks of single machines that somebody else fills, for a while. A node then refuses nothing but appends, and no
//! process ends.

use duramen_broker::ConnectionId;
use duramen_protocol::{ErrorCode, Response};

use super::member::{Member, Told};
use crate::failure::{Failure, wrong};
use crate::machine::RESERVE_BYTES;
use crate::prng::Prng;
use crate::trace::tell;

/// See above.
#[derive(Debug)]
pub(super) struct Space {
    /// Chance of a change in ten thousand, for each step.
    pub(super) fills: u64,
    /// Times that a disk was filled, and produces that were refused for it.
    pub(super) filled: u64,
    pub(super) refused: u64,
    limited: Vec<bool>,
    /// State that the machine of a connection had been told when it was last asked.
    asked: Vec<(ConnectionId, Told)>,
    chance: Prng,
}

impl Space {
    /// Draws the disks of a run: in most runs there is room.
    pub(super) fn new(seed: u64, machines: usize) -> Self {
        let mut chance = Prng::new(seed, "cluster space");
        let fills = *chance.pick(&[0, 0, 0, 10, 40]);
        let limited = vec![false; machines];
        Self { fills, filled: 0, refused: 0, limited, asked: Vec::new(), chance }
    }

    /// Fills a disk, or frees it, now and then.
    pub(super) fn disturb(&mut self, members: &[Member]) {
        for (member, limited) in members.iter().zip(&mut self.limited) {
            if *limited && (self.fills == 0 || self.chance.chance(2)) {
                tell(|| format!("machine {} has room again", member.at));
                member.machine.disk.set_capacity(u64::MAX / 2);
                *limited = false;
            }
        }
        if self.chance.below(10_000) >= self.fills {
            return;
        }
        let at = self.chance.index(members.len());
        let disk = &members[at].machine.disk;
        if !self.limited[at] && disk.files().contains(&("reserve".to_owned(), RESERVE_BYTES)) {
            let left = self.chance.below(400_000);
            tell(|| format!("machine {at} has only {left} bytes left"));
            disk.set_capacity(disk.used() + left);
            self.limited[at] = true;
            self.filled += 1;
        }
    }

    /// Notes that a request goes to a machine, and the state that the machine was told.
    pub(super) fn note(&mut self, connection: ConnectionId, told: Told) {
        self.asked.retain(|(other, _)| *other != connection);
        self.asked.push((connection, told));
    }

    /// Checks that a process that knows its disk to be full refuses appends and says why. One that has room must not
    /// say so.
    pub(super) fn check(
        &mut self,
        connection: ConnectionId,
        (at, told): (usize, Told),
        response: &Response,
    ) -> Result<(), Failure> {
        let Response::Produce(it) = response else { return Ok(()) };
        let code = it.responses[0].partition_responses[0].error_code;
        let is_refused = code == ErrorCode::KafkaStorageError.code();
        self.refused += u64::from(is_refused);
        if !self.asked.contains(&(connection, told)) {
            return Ok(()); // it was told something meanwhile
        }
        if if told.is_full { code == 0 } else { is_refused } {
            return wrong(format!("machine {at}: a produce is answered with {code}: {told:?}"));
        }
        Ok(())
    }
}
