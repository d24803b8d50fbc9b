//! # Room card: burials
//!
//! Purpose:    copy records that a share group gave up to its dead-letter topic (KIP-1191).
//! Owns:       dead letters until they are durable. The node reads them, sends them to the leader of their partition,
//!             and sends them again.
//! Interface:  [`Shares::bury`]; the node calls the rest on events.
//! Invariants: a record counts as buried only once its copy is durable in its partition. The node sends a copy again
//!             that may be lost: a dead letter may be in the topic twice, and is never missing.
//! Never:      the reason of a dead letter (see `shares::partition`), its format (see `read_plan`).
//! Tests:      `node/tests/share_groups.rs`.
//! Start at:   [`Shares::bury`], then `go_on_burying`.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_storage::sabotage::{self, Bug};

use super::Shares;
use crate::configs::is_queue_topic;
use crate::controller::image::Topic;
use crate::core::{Core, Timer};
use crate::event::{Action, DeadLetters, DeadLettersMade, Look};
use crate::limits::{BURIAL_AGAIN_US, BURIAL_BYTES, BURIAL_US, BURIALS_MAX};
use crate::shares::ShareKey;
use crate::shares::partition::{Dying, Reason};

/// Progress of dead letters.
#[derive(Debug)]
enum Step {
    /// Waiting for a turn, or for another try.
    Waiting { again_us: u64 },
    /// The records are being read.
    Reading,
    /// A batch with the records before `upto`, sent to a leader at a time.
    Sent { batch: Bytes, upto: i64, at_us: u64 },
}

#[derive(Debug)]
struct Burial {
    key: ShareKey,
    /// The share partition's number, which a later share partition of this key does not have.
    number: u64,
    dying: Dying,
    /// End of the records whose dead letters are durable: every record before this offset has one.
    from: i64,
    step: Step,
    is_complained_of: bool,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct DeadLetterCopies {
    open: BTreeMap<u64, Burial>,
    is_timed: bool,
}

impl DeadLetterCopies {
    /// Returns the number of open burials.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

impl DeadLetterCopies {
    /// Checks that few are on their way, and the others have their turn.
    pub(super) fn inspect(&self) {
        assert!(self.is_timed || self.open.is_empty(), "a burial that waits has its turn");
        debug_assert!(
            self.open.values().filter(|it| !matches!(it.step, Step::Waiting { .. })).count()
                <= BURIALS_MAX,
            "few burials are under way"
        );
        debug_assert!(
            self.open.values().all(|it| it.from <= it.dying.last),
            "a burial that is over is forgotten"
        );
    }
}

impl Shares {
    /// Sees to it that records of a share partition are kept in the dead-letter topic of its group.
    pub(super) fn bury(&mut self, core: &mut Core, key: &ShareKey, number: u64, dying: Vec<Dying>) {
        for dying in dying {
            let nonce = core.chance.next();
            let (key, from, step) = (key.clone(), dying.first, Step::Waiting { again_us: 0 });
            let burial = Burial { key, number, dying, from, step, is_complained_of: false };
            self.dead_letters.open.insert(nonce, burial);
        }
        self.begin_burials(core);
    }

    fn begin_burials(&mut self, core: &mut Core) {
        let is_due = |burial: &Burial| matches!(burial.step, Step::Waiting { again_us } if again_us <= core.now.mono_us);
        let busy = self.dead_letters.open.values();
        let busy = busy.filter(|it| !matches!(it.step, Step::Waiting { .. })).count();
        let waiting = self.dead_letters.open.iter().filter(|(_, burial)| is_due(burial));
        let room = BURIALS_MAX.saturating_sub(busy);
        let nonces: Vec<u64> = waiting.map(|(nonce, _)| *nonce).take(room).collect();
        for nonce in nonces {
            self.go_on_burying(core, nonce);
        }
        if !self.dead_letters.open.is_empty() && !self.dead_letters.is_timed {
            self.dead_letters.is_timed = true;
            let at = core.now.mono_us.saturating_add(BURIAL_US);
            core.timers.insert((at, Timer::DeadLetters));
        }
    }

    pub(crate) fn on_burials_timer(&mut self, core: &mut Core) {
        self.dead_letters.is_timed = false;
        let late = core.now.mono_us.saturating_sub(BURIAL_AGAIN_US);
        let is_late = |it: &Burial| matches!(it.step, Step::Sent { at_us, .. } if at_us <= late);
        let open = self.dead_letters.open.iter().filter(|(_, burial)| is_late(burial));
        let nonces: Vec<u64> = open.map(|(nonce, _)| *nonce).collect();
        for nonce in nonces {
            if let Some(burial) = self.dead_letters.open.get(&nonce) {
                let (key, number) = (burial.key.clone(), burial.number);
                self.note_burial_waits(&key, number);
            }
            self.send_dead_letters(core, nonce);
        }
        self.begin_burials(core);
    }

    /// Reads the next records.
    fn go_on_burying(&mut self, core: &mut Core, nonce: u64) {
        let Some(burial) = self.dead_letters.open.get(&nonce) else { return };
        let (key, number, dying, from) =
            (burial.key.clone(), burial.number, burial.dying, burial.from);
        let Some(replica) = self.shared_replica(&key, number) else {
            // Another replica leads the share partition, or it was loaded again: the records are given up again there.
            self.dead_letters.open.remove(&nonce);
            return;
        };
        let problem = match core.dead_letter_topic(&key.group) {
            None => {
                self.dead_letters.open.remove(&nonce);
                return self.note_buried(&key, number, from, dying.last);
            }
            Some(found) => found.err(),
        };
        if let Some(problem) = problem {
            return self.bury_later(core, nonce, problem);
        }
        let source = core.controller.image.topic(key.topic_id);
        let (Some(source), Some(partition)) = (source, core.partitions.get(&replica)) else {
            return;
        };
        let settings = core.group_settings(&key.group);
        let reason = match dying.reason {
            Reason::Rejected => "it was rejected by a consumer",
            Reason::Exhausted => "it was given out as often as it may be",
            Reason::Expired => "it has expired",
        };
        let letters = DeadLetters {
            replica,
            from: from.max(partition.log_start()),
            end: dying.last + 1,
            committed: partition.committed(),
            group: key.group.to_string(),
            topic: source.name.clone(),
            partition: key.partition,
            deliveries: dying.deliveries,
            reason,
            copies: settings.copies_dead_letters,
            bytes_max: BURIAL_BYTES,
            is_of_queues: partition.settings.queue,
            ticket: nonce,
        };
        core.out.push(Action::Look(Look::DeadLetters(letters)));
        if let Some(burial) = self.dead_letters.open.get_mut(&nonce) {
            burial.step = Step::Reading;
        }
    }

    fn bury_later(&mut self, core: &mut Core, nonce: u64, problem: &str) {
        let Some(burial) = self.dead_letters.open.get_mut(&nonce) else { return };
        if !std::mem::replace(&mut burial.is_complained_of, true) {
            let group = &*burial.key.group;
            let offset = burial.from;
            tracing::warn!(
                group,
                offset,
                problem,
                "a dead letter cannot be appended yet; this node tries again"
            );
        }
        let again_us = core.now.mono_us.saturating_add(BURIAL_AGAIN_US);
        burial.step = Step::Waiting { again_us };
        let (key, number) = (burial.key.clone(), burial.number);
        self.note_burial_waits(&key, number);
    }

    pub(crate) fn on_dead_letters(&mut self, core: &mut Core, made: DeadLettersMade) {
        let DeadLettersMade { ticket: nonce, made } = made;
        match made {
            Err(problem) => self.bury_later(core, nonce, &problem),
            Ok((batch, upto)) => {
                let Some(burial) = self.dead_letters.open.get_mut(&nonce) else { return };
                let is_empty = batch.is_empty();
                burial.step = Step::Sent { batch, upto, at_us: core.now.mono_us };
                if is_empty {
                    // There is no record any more.
                    return self.on_buried(core, nonce, ErrorCode::None);
                }
                self.send_dead_letters(core, nonce);
            }
        }
        self.begin_burials(core);
    }

    /// Gives a batch to the leader of the partition that it goes to.
    fn send_dead_letters(&mut self, core: &mut Core, nonce: u64) {
        let Some(burial) = self.dead_letters.open.get(&nonce) else { return };
        let Step::Sent { batch, .. } = &burial.step else { return };
        let (batch, group, partition) =
            (batch.clone(), burial.key.group.clone(), burial.key.partition);
        let Some(Ok(topic)) = core.dead_letter_topic(&group) else {
            return self.bury_later(core, nonce, "its topic is gone");
        };
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX).max(1);
        let place = (topic.id, partition % count);
        if let Some(Burial { step: Step::Sent { at_us, .. }, .. }) =
            self.dead_letters.open.get_mut(&nonce)
        {
            *at_us = core.now.mono_us;
        }
        if let Err(code) = core.deliver(place, nonce, &batch) {
            self.on_buried(core, nonce, code);
        }
        if sabotage::is(Bug::BuriedBeforeKept) {
            self.on_buried(core, nonce, ErrorCode::None);
        }
    }

    /// Takes the result of a delivery, if it was one of dead letters.
    pub(crate) fn on_buried(&mut self, core: &mut Core, nonce: u64, code: ErrorCode) {
        let Some(burial) = self.dead_letters.open.get_mut(&nonce) else { return };
        let Step::Sent { upto, .. } = burial.step else { return };
        if !code.is_none() {
            return self.bury_later(core, nonce, code.name());
        }
        let (key, number, first) = (burial.key.clone(), burial.number, burial.from);
        burial.from = upto;
        burial.step = Step::Waiting { again_us: 0 };
        if upto > burial.dying.last {
            self.dead_letters.open.remove(&nonce);
        }
        self.note_buried(&key, number, first, upto - 1);
        self.begin_burials(core);
    }
}

impl Core {
    /// Returns the topic that a group's dead letters go to, or the reason why it cannot be used. `None` if the group
    /// has no such topic any more.
    fn dead_letter_topic(&self, group: &str) -> Option<Result<&Topic, &'static str>> {
        let name = self.dead_letters_of(group)?;
        let Some(topic) = self.controller.image.topic_named(name) else {
            return Some(Err("there is no such topic"));
        };
        // The headers of a dead letter are those of any client, and in a queue topic some are the leader's.
        if is_queue_topic(&topic.configs) {
            return Some(Err("a topic with queue.enable takes no dead letters"));
        }
        let is_one = topic.configs.get("errors.deadletterqueue.group.enable");
        Some(match is_one.map(String::as_str) {
            Some("true") => Ok(topic),
            _ => Err("the topic's errors.deadletterqueue.group.enable is not true"),
        })
    }
}
