//! Encoding of the Raft library's messages between nodes, and the kinds of messages that nodes send.

use bytes::Bytes;
use duramen_protocol::wire::Uuid;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::exchange::GroupId;
use super::snapshots;
use crate::peer::{Letter, LetterEntry};

/// The kind of a letter that lets its receiver stand for election at once.
pub(crate) const TIMEOUT_NOW: i8 = 14;
/// The kind of a letter that says what its sender has, or that it lacks what came before.
pub(crate) const APPENDED: i8 = 4;
/// The kind of a letter that says where its receiver's log is to begin anew.
pub(super) const SNAPSHOT: i8 = 7;
/// Kinds of messages between replicas. Proposals, and a replica's messages to itself, do not travel.
const KINDS: [(i8, MessageType); 10] = [
    (3, MessageType::MsgAppend),
    (APPENDED, MessageType::MsgAppendResponse),
    (5, MessageType::MsgRequestVote),
    (6, MessageType::MsgRequestVoteResponse),
    (SNAPSHOT, MessageType::MsgSnapshot),
    (8, MessageType::MsgHeartbeat),
    (9, MessageType::MsgHeartbeatResponse),
    (TIMEOUT_NOW, MessageType::MsgTimeoutNow),
    (17, MessageType::MsgRequestPreVote),
    (18, MessageType::MsgRequestPreVoteResponse),
];
const ENTRY_KINDS: [EntryType; 3] =
    [EntryType::EntryNormal, EntryType::EntryConfChange, EntryType::EntryConfChangeV2];

/// Returns a message as a letter; `None` if its kind does not travel.
pub(crate) fn letter_of(
    group: GroupId,
    mut message: Message,
    payloads: Vec<Bytes>,
) -> Option<Letter> {
    snapshots::pack(&mut message);
    let is_this = |(_, kind): &&(i8, MessageType)| *kind == message.get_msg_type();
    let (kind, _) = KINDS.iter().find(is_this)?;
    let entry = |entry: &Entry| {
        let kind = ENTRY_KINDS.iter().position(|kind| *kind == entry.get_entry_type());
        let kind = i8::try_from(kind.expect("there are three")).expect("small");
        LetterEntry { kind, term: entry.term, index: entry.index, data: entry.data.clone() }
    };
    Some(Letter {
        topic_id: Uuid(group.topic_id),
        partition: group.partition,
        kind: *kind,
        from: message.from,
        to: message.to,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        commit: message.commit,
        commit_term: message.commit_term,
        reject: message.reject,
        reject_hint: message.reject_hint,
        request_snapshot: message.request_snapshot,
        priority: message.priority,
        entries: message.get_entries().iter().map(entry).collect(),
        context: message.context,
        payloads,
    })
}

/// Returns the message that travelled as `letter`; `None` if no replica sends such a message.
pub(super) fn message_of(letter: &Letter) -> Option<Message> {
    let (_, kind) = KINDS.iter().find(|(kind, _)| *kind == letter.kind)?;
    let mut message = Message::default();
    message.set_msg_type(*kind);
    message.from = letter.from;
    message.to = letter.to;
    message.term = letter.term;
    message.log_term = letter.log_term;
    message.index = letter.index;
    message.commit = letter.commit;
    message.commit_term = letter.commit_term;
    message.reject = letter.reject;
    message.reject_hint = letter.reject_hint;
    message.request_snapshot = letter.request_snapshot;
    message.priority = letter.priority;
    message.context = letter.context.clone();
    let mut entries = Vec::with_capacity(letter.entries.len());
    for given in &letter.entries {
        let mut entry = Entry::default();
        entry.set_entry_type(*ENTRY_KINDS.get(usize::try_from(given.kind).ok()?)?);
        entry.term = given.term;
        entry.index = given.index;
        entry.data = given.data.clone();
        entries.push(entry);
    }
    message.set_entries(entries.into());
    snapshots::unpack(&mut message)?;
    Some(message)
}
