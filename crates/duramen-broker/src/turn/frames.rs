//! Frames between nodes: one goes out to each node at the end of a turn; what came in is handed to the room that it is
//! for.

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use crate::controller::METADATA_GROUP;
use crate::core::{Core, mark};
use crate::event::{Action, LogRead, MENDING_TICKETS};
use crate::limits::PEER_QUIET_TICKS;
use crate::metadata_records::{MetadataRecord, PlacedReplica, RegisterBroker};
use crate::node::{Node, members, reassignments, settling};
use crate::peer::{Delivered, Frame, Letter, PeerFrame};
use crate::raft::{GroupId, ReadFor, TIMEOUT_NOW};

/// Ticks the groups of several voters. Missed ticks are not made up for, because they would end terms for nothing.
pub(super) fn tick_peers(node: &mut Node) {
    let Node { core, quiescence, members, settling, repairs, .. } = node;
    core.schedule_ticks();
    core.is_controller_dirty |= core.controller.group.tick();
    quiescence.tick_groups(core);
    core.tick_links();
    settling.tick(core);
    if core.peers.ticks().is_multiple_of(PEER_QUIET_TICKS) {
        quiescence.note_lacking(core);
        core.compare_clocks();
        core.ask_leader();
        members.tend_members(core);
        reassignments::go_on(core);
        members.tell_of_useless(core, repairs.take_useless());
    }
}

/// Sends the frames of this turn.
pub(super) fn send_frames(node: &mut Node) {
    let Node { core, quiescence, moves, .. } = node;
    let frames = core.peers.take_frames();
    if frames.is_empty() {
        return;
    }
    let unheard: Vec<i32> = core.unheard().collect();
    let has_full_disk = moves.has_full_disk(core);
    // An earlier build knows of slow disks alone.
    let has_slow_disk = moves.has_slow_disk(core) || has_full_disk;
    for (to, mut frame) in frames {
        core.fill_frame(to, &mut frame);
        frame.heard.asleep = quiescence.known(to, frame.heard.incarnation);
        frame.asleep = quiescence.tell(to, frame.number);
        frame.unheard.clone_from(&unheard);
        frame.is_leaving = moves.is_draining();
        frame.has_slow_disk = has_slow_disk;
        frame.has_full_disk = has_full_disk;
        core.out.push(Action::Send { to, frame: Box::new(PeerFrame(frame)) });
    }
}

/// Takes the sender's state from another node's frame. Hands the frame back if this node knows the sender's directory.
/// A frame that is not for this cluster, or from this node's own id, is ignored.
pub(super) fn hear_of(node: &mut Node, frame: Frame) -> Option<Frame> {
    if frame.cluster_id.0 != node.core.options.facts.cluster_id
        || frame.broker_id == node.core.options.facts.broker_id
    {
        node.core.counters.foreign_frames += 1;
        return None;
    }
    let known = node.core.directory_of(frame.broker_id);
    let is_known = known == Some(frame.directory_id);
    if is_known || known.is_none() {
        if node.core.hear(&frame) {
            node.quiescence.on_heard(frame.broker_id, frame.heard.number, frame.heard.asleep);
        }
        for lead in &frame.leads {
            for key in node.core.peers.note_lead(lead) {
                node.core.on_leader(key);
            }
        }
    }
    if !is_known {
        on_stranger(node, frame);
        return None;
    }
    node.moves.on_moves_wanted(&mut node.core, &frame);
    Some(frame)
}

/// Takes everything in a frame but the sender's state and forwarded requests.
pub(super) fn on_frame(node: &mut Node, mut frame: Frame) {
    node.repairs.on_ranges(&mut node.core, &frame);
    node.feeds.on_prefixes(&mut node.core, &mut node.repairs, &frame);
    node.coordinators.on_transaction_calls(&mut node.core, &frame);
    for delivery in &frame.deliveries {
        node.core.on_delivery(frame.broker_id, delivery);
    }
    for &Delivered { nonce, error_code } in &frame.delivered {
        let code = ErrorCode::from_code(error_code).unwrap_or(ErrorCode::UnknownServerError);
        node.on_delivered(nonce, code);
    }
    node.coordinators.on_share_frames(&mut node.core, &frame);
    for letter in std::mem::take(&mut frame.letters) {
        on_letter(node, frame.broker_id, frame.directory_id, letter);
    }
    settling::hear_frame(&mut node.core, &frame);
    let sender = (frame.broker_id, frame.incarnation);
    node.quiescence.on_asleep(
        &mut node.core,
        sender,
        frame.directory_id,
        std::mem::take(&mut frame.asleep),
    );
    serve_peer(&mut node.core, &frame);
    for stranger in &frame.strangers {
        let replaces = frame.replacing.contains(&stranger.directory_id);
        members::admit(&mut node.core, stranger, replaces);
    }
    for ids in frame.ids_granted {
        if node.core.peers.is_wanted(&ids) {
            node.core.producer_ids = (ids.first, ids.end);
            node.grant_producer_ids();
        }
    }
}

/// Takes a frame from a directory that is not its node's, as far as this node knows. The metadata may be ahead of
/// this node's copy, and know the directory.
fn on_stranger(node: &mut Node, mut frame: Frame) {
    node.core.counters.foreign_frames += 1;
    for letter in std::mem::take(&mut frame.letters) {
        if letter.topic_id.0 == METADATA_GROUP.topic_id {
            on_letter(node, frame.broker_id, frame.directory_id, letter);
        }
    }
    let is_own = |it: &RegisterBroker| {
        it.broker_id == frame.broker_id && it.directory_id == frame.directory_id
    };
    let replaces = frame.replacing.contains(&frame.directory_id);
    let Some(registration) = frame.registrations.into_iter().find(is_own) else { return };
    if node.core.controller.group.is_serving() {
        return members::admit(&mut node.core, &registration, replaces);
    }
    // The directory knows the founders, and none of them may lead any more.
    let leader = node.core.metadata_leader().filter(|id| *id != node.core.options.facts.broker_id);
    if let Some(leader) = leader {
        let to_leader = node.core.peers.frame_to(leader);
        to_leader.replacing.extend(replaces.then_some(registration.directory_id));
        to_leader.strangers.push(registration);
    }
}

fn on_letter(node: &mut Node, broker_id: i32, sender: Uuid, letter: Letter) {
    let group = GroupId { topic_id: letter.topic_id.0, partition: letter.partition };
    let is_from = if group == METADATA_GROUP {
        let (peer_id, directory_id) = (letter.from, sender);
        node.core.peers.meet(PlacedReplica { peer_id, broker_id, directory_id })
    } else {
        node.core.placed(group, letter.from).is_some_and(|it| it.directory_id == sender)
    };
    if !is_from {
        node.core.counters.foreign_letters += 1;
        return;
    }
    // A node that is about to end does not begin to lead.
    if letter.kind == TIMEOUT_NOW && node.moves.is_draining() {
        return;
    }
    // The sender will try again; the requests that wait for room here came first.
    if !letter.payloads.is_empty()
        && node.core.bytes_in_flight > node.core.options.bytes_in_flight_max
    {
        return;
    }
    if group == METADATA_GROUP {
        if letter.to == node.core.controller.group.id().0 {
            node.core.controller.group.on_letter(letter);
            node.core.is_controller_dirty = true;
        }
        return;
    }
    let Some(partition) = node.core.partitions.get_mut(&ReplicaId(letter.to)) else { return };
    if partition.id != group {
        node.core.counters.foreign_letters += 1;
        return;
    }
    if let Some(given) = partition.group.given_by(&letter) {
        return node.feeds.on_prefixed(&mut node.core, broker_id, letter, given);
    }
    let before = node.core.bytes_in_flight - partition.group.bytes_in_flight();
    partition.hear(letter);
    node.core.bytes_in_flight = before + partition.group.bytes_in_flight();
    mark(&mut node.core.dirty, partition);
}

/// Begins the reads for throttled followers whose turn has come.
pub(super) fn release_reads(node: &mut Node) {
    for late in node.core.release_reads() {
        let why = "the copies of this replica are throttled: it waited for too long".to_owned();
        node.feeds.on_prefix_read(&mut node.core, late.answer(Err(why)));
    }
}

/// Takes the payload that was read for a follower.
pub(super) fn on_payload(node: &mut Node, read: LogRead) {
    node.core.peers.end_read();
    node.core.counters.throttled_bytes += node.core.throttle.on_read(&read);
    if read.peer == Some(read.replica) {
        return settling::hold_own(&mut node.core, &read);
    }
    if node.feeds.serves(read.ticket) {
        return node.feeds.on_prefix_read(&mut node.core, read);
    }
    if read.ticket >= MENDING_TICKETS {
        return node.repairs.on_range_read(&mut node.core, read);
    }
    let LogRead { replica, from, peer, ticket, begins_segment, batches, .. } = read;
    let Some(ReplicaId(peer)) = peer else { return };
    let read = ReadFor { peer, ticket, from, begins_segment, batches };
    if replica == node.core.controller.group.id() {
        node.core.controller.group.on_read(read);
        node.core.is_controller_dirty = true;
    } else if let Some(partition) = node.core.partitions.get_mut(&replica) {
        partition.group.on_read(read);
        mark(&mut node.core.dirty, partition);
    }
}

/// Serves another node's requests to the leader of the metadata. If this node does not lead it, the other asks
/// again.
fn serve_peer(core: &mut Core, frame: &Frame) {
    let &Frame { broker_id, directory_id, .. } = frame;
    if !core.controller.group.is_serving() {
        return;
    }
    for registration in &frame.registrations {
        let known = core.controller.image.brokers.get(&broker_id);
        let is_new = known.is_none_or(|known| known != registration);
        let is_own =
            registration.broker_id == broker_id && registration.directory_id == directory_id;
        if is_new && is_own {
            let record = MetadataRecord::RegisterBroker(registration.clone());
            core.propose_for_peer(&[record]);
        }
    }
    for &nonce in &frame.ids_wanted {
        core.allocate_for_peer(broker_id, nonce);
    }
    for name in &frame.topics_wanted {
        core.make_topic(name);
    }
    reassignments::finish(core, &frame.reassigned);
    reassignments::replace_useless(core, (broker_id, directory_id), &frame.useless);
}
