//! Checks that nothing is left, on any machine, of topics that were deleted and of replicas that went elsewhere.

use std::collections::BTreeSet;

use duramen_protocol::wire::Uuid;
use duramen_storage::SET_ASIDE;

use super::World;
use crate::failure::{Failure, wrong};

impl World {
    /// Checks that nobody has a replica of a topic that is gone, nor a directory of a replica that is gone.
    pub(super) fn check_nothing_gone_is_left(&self) -> Result<(), Failure> {
        let oracle = &self.clients.oracle;
        for member in self.members.iter().filter(|member| !member.is_out) {
            let Some(node) = member.machine.node() else { continue };
            let standings = node.standings();
            for it in &standings {
                if oracle.is_gone(Uuid(it.topic_id)) {
                    let (at, replica) = (member.at, it.replica);
                    return self
                        .stuck(&format!("machine {at} has {replica:?} of a topic that is gone"));
                }
            }
            let files = member.machine.disk.files();
            let dirs = files.iter().filter_map(|(path, _)| Some(path.split_once('/')?.0));
            // A power loss leaves batches that nobody was told of; starts set them aside.
            let dirs = dirs.filter(|dir| !["journal", SET_ASIDE].contains(dir));
            for dir in dirs.collect::<BTreeSet<_>>() {
                let is_of = |it: &&duramen_broker::Standing| {
                    let (topic, partition) = dir.rsplit_once('-')?;
                    let is_known = oracle.id_of(topic).is_none_or(|id| id.0 == it.topic_id);
                    Some(is_known && partition.parse() == Ok(it.partition))
                };
                if !standings.iter().any(|it| is_of(&it) == Some(true)) {
                    let at = member.at;
                    let what = format!("machine {at} has files of {dir}, and no such replica");
                    return wrong(format!("{what} {}", self.told()));
                }
            }
        }
        Ok(())
    }
}
