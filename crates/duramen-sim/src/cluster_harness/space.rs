//! Disks of single machines that somebody else fills, for a while. A node then refuses nothing but appends, and no
//! process ends.

use duramen_broker::ConnectionId;
use duramen_protocol::{ErrorCode, Response};

use super::World;
use super::machine::RESERVE_BYTES;
use crate::failure::Failure;
use crate::prng::Prng;
use crate::trace::tell;

/// State of the disk as a process was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) is_full: bool,
    /// Number of such messages and of starts.
    pub(super) changes: u64,
}

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
}

impl World {
    /// Fills a disk, or frees it, now and then.
    pub(super) fn disturb_space(&mut self) {
        let space = &mut self.space;
        for (machine, limited) in self.machines.iter().zip(&mut space.limited) {
            if *limited && (space.fills == 0 || space.chance.chance(2)) {
                tell(|| format!("machine {} has room again", machine.at));
                machine.disk.set_capacity(u64::MAX / 2);
                *limited = false;
            }
        }
        if space.chance.below(10_000) >= space.fills {
            return;
        }
        let at = space.chance.index(self.machines.len());
        let disk = &self.machines[at].disk;
        if !space.limited[at] && disk.files().contains(&("reserve".to_owned(), RESERVE_BYTES)) {
            let left = space.chance.below(400_000);
            tell(|| format!("machine {at} has only {left} bytes left"));
            disk.set_capacity(disk.used() + left);
            space.limited[at] = true;
            space.filled += 1;
        }
    }

    /// Notes that a request goes to a machine.
    pub(super) fn note_space(&mut self, connection: ConnectionId, at: usize) {
        self.space.asked.retain(|(other, _)| *other != connection);
        self.space.asked.push((connection, self.machines[at].told));
    }

    /// Checks that a process that knows its disk to be full refuses appends and says why. One that has room must not
    /// say so.
    pub(super) fn check_space(
        &mut self,
        connection: ConnectionId,
        at: usize,
        response: &Response,
    ) -> Result<(), Failure> {
        let Response::Produce(it) = response else { return Ok(()) };
        let told = self.machines[at].told;
        let code = it.responses[0].partition_responses[0].error_code;
        let is_refused = code == ErrorCode::KafkaStorageError.code();
        self.space.refused += u64::from(is_refused);
        if !self.space.asked.contains(&(connection, told)) {
            return Ok(()); // it was told something meanwhile
        }
        if if told.is_full { code == 0 } else { is_refused } {
            let what = format!("machine {at}: a produce is answered with {code}: {told:?}");
            return Err(Failure::correctness(what));
        }
        Ok(())
    }
}
