//! The stop of the machine that was taken out, and the wait until all nodes agree on its membership.

use duramen_broker::Node;

use super::World;
use crate::failure::Failure;
use crate::trace::tell;

impl World {
    /// Stops a machine some time after it was taken out.
    pub(super) fn disturb_leaving(&mut self) {
        let Some(at) = self.leaving.at else { return };
        if !self.clients.has_taken_out() {
            return;
        }
        let Some(stops_us) = self.leaving.stops_us else {
            tell(|| format!("machine {at} has LEFT"));
            self.members[at].is_out = true;
            self.leaving.left += 1;
            self.leaving.stops_us = Some(self.mono_us + self.leaving.chance.below(3_000_000));
            return;
        };
        if self.mono_us >= stops_us {
            self.stop_for_good(at);
        }
    }

    /// Stops a machine for good: its clients go elsewhere. Another machine of its number may come, with an empty disk.
    fn stop_for_good(&mut self, at: usize) {
        if self.members[at].down_until_us == u64::MAX || !self.members[at].is_out {
            return;
        }
        self.bury(at, false);
        self.members[at].down_until_us = u64::MAX;
        if self.leaving.comes_back {
            self.members[at].wipe();
            self.members[at].is_out = false;
            self.members[at].down_until_us = self.mono_us + self.leaving.chance.below(2_000_000);
            self.leaving.returned += 1;
        }
    }

    /// Waits until the machine that was taken out is stopped and nobody takes it for a member, or until all know its
    /// successor.
    pub(super) fn await_departure(&mut self) -> Result<(), Failure> {
        let Some(at) = self.leaving.at.filter(|_| self.clients.has_taken_out()) else {
            return Ok(());
        };
        let late_us = self.mono_us + 12_000_000;
        while self.mono_us < late_us {
            self.pass(100_000)?;
            let member = &self.members[at];
            let is_settled = member.machine.is_alive() != member.is_out;
            let its = member.directory_id();
            let others = self.members.iter().filter(|it| !it.is_out);
            let mut nodes = others.filter_map(|it| it.machine.node());
            let is_member = !member.is_out;
            let is_known = |node: &Node| node.directories().any(|it| it == its) == is_member;
            if is_settled && nodes.all(is_known) {
                return Ok(());
            }
        }
        self.stuck(&format!("not all agree whether machine {at} is a member:"))
    }
}
