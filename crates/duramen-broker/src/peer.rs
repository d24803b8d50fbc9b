//! # Room card: peer
//!
//! Purpose:    messages between the nodes of one cluster, as data and as bytes.
//! Owns:       the frame's layout, its version and its bounds.
//! Interface:  [`PeerFrame::into_parts`], [`PeerFrame::encode`], [`PeerFrame::decode`]; inside the crate [`Frame`]
//!             and its parts.
//! Invariants: decoding refuses all bytes but a whole, undamaged frame of a known version. Every number that sizes an
//!             allocation is first compared with the bytes at hand. Neither encoding nor decoding copies payload.
//! Never:      the rights of senders (see `turn/frames.rs`), the meaning of messages (see `raft`), sockets.
//! Tests:      below; `duramen-sim` sends every frame as bytes.
//! Start at:   [`Frame`].

use bytes::Bytes;
use duramen_protocol::wire::{Decoder, Encoder, Message, Uuid};

use crate::metadata_records::RegisterBroker;

/// The only version. A later build puts new fields into tagged fields, which earlier builds ignore, so that nodes can
/// be upgraded one by one. A change that an earlier build must not ignore takes another version.
const VERSION: i16 = 0;
/// Checksum, version, and how long the body is.
const HEAD_BYTES: usize = 4 + 2 + 4;
/// The length of one payload.
const LENGTH_BYTES: usize = 4;
/// Bit of [`Frame::knows`]: the build reads the entries that begin and end a stretch.
pub(crate) const KNOWS_STRETCHES: i64 = 1;
/// Elements of all lists of one frame.
const ELEMENTS_MAX: usize = 1 << 18;

duramen_protocol::message! {
    /// All that one node says to another in one turn.
    pub(crate) struct Frame: versions 0..=0, flexible 0.. {
        cluster_id: Uuid [0..],
        broker_id: i32 [0..],
        directory_id: Uuid [0..],
        incarnation: u64 [0..],
        number: u64 [0..],
        heard: Heard [0..],
        letters: Vec<Letter> [0..],
        leads_after: u64 [0..],
        leads: Vec<Lead> [0..],
        registrations: Vec<RegisterBroker> [0..],
        ids_wanted: Vec<u64> [0..],
        ids_granted: Vec<IdsGranted> [0..],
        topics_wanted: Vec<String> [0..],
        is_leaving: bool [0..],
        moves_wanted: Vec<MoveWanted> [0..],
        forwards: Vec<Forward> [0..],
        forwarded: Vec<Forwarded> [0..],
        reassigned: Vec<Reassigned> [0..],
        useless: Vec<Useless> [0..],
        asleep: Asleep [0..],
        ranges_wanted: Vec<RangeWanted> [0..],
        ranges_given: Vec<RangeGiven> [0..],
        strangers: Vec<RegisterBroker> [0..],
        has_slow_disk: bool [0.., tag 0 in 0..],
        transaction_asks: Vec<TransactionAsk> [0.., tag 1 in 0..],
        transaction_answers: Vec<TransactionAnswer> [0.., tag 2 in 0..],
        marks_wanted: Vec<MarkWanted> [0.., tag 3 in 0..],
        marked: Vec<Marked> [0.., tag 4 in 0..],
        share_asks: Vec<ShareAsk> [0.., tag 5 in 0..],
        share_answers: Vec<ShareAnswer> [0.., tag 6 in 0..],
        deliveries: Vec<Delivery> [0.., tag 7 in 0..],
        delivered: Vec<Delivered> [0.., tag 8 in 0..],
        prefixes_wanted: Vec<PrefixWanted> [0.., tag 9 in 0..],
        prefixes_given: Vec<PrefixGiven> [0.., tag 10 in 0..],
        unheard: Vec<i32> [0.., tag 11 in 0..],
        wall_ms: i64 [0.., tag 12 in 0..],
        replacing: Vec<Uuid> [0.., tag 13 in 0..],
        has_full_disk: bool [0.., tag 14 in 0..],
        holds_wanted: Vec<HoldsWanted> [0.., tag 15 in 0..],
        holds_given: Vec<HoldsGiven> [0.., tag 16 in 0..],
        adoptions: Vec<Adoption> [0.., tag 17 in 0..],
        knows: i64 [0.., tag 18 in 0..],
        lacks: Vec<Lack> [0.., tag 19 in 0..],
    }
    /// A new leader asks a member of its log's last stretch for the batches that it holds, behind a number. The stretch
    /// is named by term and index of the entry that began it.
    pub(crate) struct HoldsWanted {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        from: u64 [0..],
        to: u64 [0..],
        term: u64 [0..],
        stretch_term: u64 [0..],
        stretch_index: u64 [0..],
        after: u64 [0..],
    }
    /// A part of the answer to a question: batches in the order in which they came, and the number of the last.
    pub(crate) struct HoldsGiven {
        question: HoldsWanted [0..],
        next: u64 [0..],
        is_last: bool [0..],
        batches: Bytes [0..],
    }
    /// Batches that the sender has held for a while in a stretch, for the leader of that stretch.
    pub(crate) struct Adoption {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        from: u64 [0..],
        to: u64 [0..],
        stretch_term: u64 [0..],
        stretch_index: u64 [0..],
        batches: Bytes [0..],
    }
    /// Letters of the leader of a term left out payload that the sender does not hold: they should come whole.
    pub(crate) struct Lack {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        from: u64 [0..],
        to: u64 [0..],
        term: u64 [0..],
    }
    /// A request about the state kept for a share group and a partition, for the coordinator of that state. A field
    /// that a kind of request does not need is -1.
    pub(crate) struct ShareAsk {
        nonce: u64 [0..],
        kind: i8 [0..],
        group_id: String [0..],
        topic_id: Uuid [0..],
        partition: i32 [0..],
        state_epoch: i32 [0..],
        leader_epoch: i32 [0..],
        start: i64 [0..],
        complete: i32 [0..],
        batches: Vec<ShareBatch> [0..],
    }
    /// The answer to a [`ShareAsk`]: what is kept now. Without an epoch that is nothing.
    pub(crate) struct ShareAnswer {
        nonce: u64 [0..],
        error_code: i16 [0..],
        state_epoch: i32 [0..],
        leader_epoch: i32 [0..],
        start: i64 [0..],
        complete: i32 [0..],
        batches: Vec<ShareBatch> [0..],
    }
    /// A run of offsets with one delivery state.
    pub(crate) struct ShareBatch {
        first: i64 [0..],
        last: i64 [0..],
        state: i8 [0..],
        count: i16 [0..],
    }
    /// Batch that the sender has made, for the leader of a partition.
    pub(crate) struct Delivery {
        nonce: u64 [0..],
        topic_id: Uuid [0..],
        partition: i32 [0..],
        batch: Bytes [0..],
    }
    /// Result of a [`Delivery`].
    pub(crate) struct Delivered {
        nonce: u64 [0..],
        error_code: i16 [0..],
    }
    /// Is this partition in this transaction, or may it be added? For the coordinator of the transactional id.
    pub(crate) struct TransactionAsk {
        nonce: u64 [0..],
        transactional_id: String [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        verify_only: bool [0..],
        version: i16 [0..],
        topic: String [0..],
        partition: i32 [0..],
    }
    /// The answer to a [`TransactionAsk`].
    pub(crate) struct TransactionAnswer {
        nonce: u64 [0..],
        error_code: i16 [0..],
    }
    /// A producer's transaction has ended: for the leader of the partition in this term. Of two decisions on a
    /// transactional id the later one has the larger number.
    pub(crate) struct MarkWanted {
        nonce: u64 [0..],
        topic_id: Uuid [0..],
        partition: i32 [0..],
        term: i32 [0..],
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        coordinator_epoch: i32 [0..],
        commits: bool [0..],
        number: i64 [0..],
    }
    /// Result of a [`MarkWanted`].
    pub(crate) struct Marked {
        nonce: u64 [0..],
        error_code: i16 [0..],
    }
    /// The sender's replica lacks the batches of these offsets, which are committed: its own are damaged.
    pub(crate) struct RangeWanted {
        nonce: u64 [0..],
        topic_id: Uuid [0..],
        partition: i32 [0..],
        replica: u64 [0..],
        offset: i64 [0..],
        end_offset: i64 [0..],
    }
    /// The first of the batches that a [`RangeWanted`] names; none if the sender cannot give them.
    pub(crate) struct RangeGiven {
        nonce: u64 [0..],
        batches: Bytes [0..],
        /// A compaction has changed or removed them at the sender.
        is_changed: bool [0.., tag 0 in 0..],
    }
    /// The sender's replica lacks what a compaction left of a log: from an offset on, if the receiver has done that
    /// very one.
    pub(crate) struct PrefixWanted {
        nonce: u64 [0..],
        topic_id: Uuid [0..],
        partition: i32 [0..],
        replica: u64 [0..],
        compaction: u64 [0..],
        offset: i64 [0..],
    }
    /// The first batches of what a [`PrefixWanted`] names, by which compaction they were left, and where the sender's
    /// log begins. None, and not the last, if they could not be read.
    pub(crate) struct PrefixGiven {
        nonce: u64 [0..],
        compaction: u64 [0..],
        is_last: bool [0..],
        log_start: i64 [0..],
        batches: Bytes [0..],
    }
    /// The voters of a partition are what the move of this number wanted: the sender leads it.
    pub(crate) struct Reassigned {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        number: u64 [0..],
    }
    /// The sender's copy of this replica is damaged: it neither votes nor serves.
    pub(crate) struct Useless {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        peer_id: u64 [0..],
    }
    /// Latest frame that the sender has received from the receiver.
    pub(crate) struct Heard {
        incarnation: u64 [0..],
        number: u64 [0..],
        leads: u64 [0..],
        asleep: u64 [0..],
    }
    /// Quiesced groups that the sender leads and the receiver has replicas of. The version counts the changes of that
    /// set, and the hash covers it. The sleepers are the changes after one version up to another.
    pub(crate) struct Asleep {
        version: u64 [0..],
        hash: u64 [0..],
        after: u64 [0..],
        upto: u64 [0..],
        sleepers: Vec<Sleeper> [0..],
    }
    /// A quiesced group whose followers have everything up to an index. Term 0 means that the group has woken.
    pub(crate) struct Sleeper {
        from: u64 [0..],
        to: u64 [0..],
        term: u64 [0..],
        index: u64 [0..],
    }
    /// One message of one group, with the payload of the batches in it beside it, in order. An empty payload stands for
    /// a batch that the receiver holds for a client: the sender has left it out.
    pub(crate) struct Letter {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        kind: i8 [0..],
        from: u64 [0..],
        to: u64 [0..],
        term: u64 [0..],
        log_term: u64 [0..],
        index: u64 [0..],
        commit: u64 [0..],
        commit_term: u64 [0..],
        reject: bool [0..],
        reject_hint: u64 [0..],
        request_snapshot: u64 [0..],
        priority: i64 [0..],
        context: Bytes [0..],
        entries: Vec<LetterEntry> [0..],
        payloads: Vec<Bytes> [0..],
    }
    /// One entry of a group's log.
    pub(crate) struct LetterEntry {
        kind: i8 [0..],
        term: u64 [0..],
        index: u64 [0..],
        data: Bytes [0..],
    }
    /// A replica leads its group since this term. Those of the partition's replicas that do not keep up are named.
    pub(crate) struct Lead {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        term: u64 [0..],
        peer_id: u64 [0..],
        version: u64 [0..],
        lacking: Vec<u64> [0.., tag 0 in 0..],
    }
    /// A partition should be led by this replica of it.
    pub(crate) struct MoveWanted {
        topic_id: Uuid [0..],
        partition: i32 [0..],
        peer_id: u64 [0..],
    }
    /// A client's request, for the node that leads the metadata. Only the process of this incarnation takes it.
    pub(crate) struct Forward {
        nonce: u64 [0..],
        incarnation: u64 [0..],
        principal: String [0..],
        listener: String [0..],
        client_host: String [0..],
        request: Bytes [0..],
        is_ruled: bool [0.., tag 0 in 0..],
    }
    /// The answer to a [`Forward`]; or it was not executed, and will not be.
    pub(crate) struct Forwarded {
        nonce: u64 [0..],
        is_refused: bool [0..],
        response: Bytes [0..],
    }
    /// Producer ids from `first` up to, not including, `end` belong to the node that asked by `nonce`.
    pub(crate) struct IdsGranted {
        nonce: u64 [0..],
        first: i64 [0..],
        end: i64 [0..],
    }
}

impl Letter {
    fn weight(&self) -> usize {
        let entries = weight_of(&self.entries, |entry| 24 + entry.data.len());
        128 + self.context.len() + entries + weight_of(&self.payloads, |it| 4 + it.len())
    }
}

impl Forward {
    fn weight(&self) -> usize {
        let names = self.principal.len() + self.listener.len() + self.client_host.len();
        32 + names + self.request.len()
    }
}

impl TransactionAsk {
    fn weight(&self) -> usize {
        48 + self.transactional_id.len() + self.topic.len()
    }
}

fn registration_weight(of: &RegisterBroker) -> usize {
    let endpoints = weight_of(&of.endpoints, |it| 16 + it.listener.len() + it.host.len());
    64 + endpoints + of.rack.as_ref().map_or(0, String::len)
}

fn weight_of<T>(list: &[T], weight: impl Fn(&T) -> usize) -> usize {
    list.iter().map(weight).sum()
}

impl Sleeper {
    /// Tells whether the group has woken.
    pub(crate) fn has_woken(&self) -> bool {
        self.term == 0
    }
}

/// A [`Frame`], for those outside who carry it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFrame(pub(crate) Frame);

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFrame {
    /// Bytes cut or changed on the way.
    #[error("the frame is harmed")]
    Harmed,
    /// Frame of a version that this build does not know.
    #[error("a frame of version {0}, and this build knows only 0")]
    Version(i16),
    /// The checksum is right, and still it cannot be read: the sender is no Duramen.
    #[error("the frame is malformed")]
    Malformed,
}

impl PeerFrame {
    /// Estimates the bytes of the encoded frame from above, with every list in it.
    pub fn weight(&self) -> usize {
        // Every field is named, so that a new list cannot be forgotten.
        let Frame {
            cluster_id: _,
            broker_id: _,
            directory_id: _,
            incarnation: _,
            number: _,
            heard: _,
            letters,
            leads_after: _,
            leads,
            registrations,
            ids_wanted,
            ids_granted,
            topics_wanted,
            is_leaving: _,
            moves_wanted,
            forwards,
            forwarded,
            reassigned,
            useless,
            asleep,
            ranges_wanted,
            ranges_given,
            strangers,
            has_slow_disk: _,
            transaction_asks,
            transaction_answers,
            marks_wanted,
            marked,
            share_asks,
            share_answers,
            deliveries,
            delivered,
            prefixes_wanted,
            prefixes_given,
            unheard,
            wall_ms: _,
            replacing,
            has_full_disk: _,
            holds_wanted,
            holds_given,
            adoptions,
            knows: _,
            lacks,
        } = &self.0;
        let logs = weight_of(letters, Letter::weight)
            + weight_of(leads, |it| 64 + it.lacking.len() * 8)
            + weight_of(ranges_given, |it| 16 + it.batches.len())
            + weight_of(prefixes_given, |it| 48 + it.batches.len())
            + weight_of(deliveries, |it| 48 + it.batch.len())
            + (ranges_wanted.len() + prefixes_wanted.len() + moves_wanted.len()) * 64
            + (reassigned.len() + useless.len() + delivered.len()) * 32
            + asleep.sleepers.len() * 40;
        let nodes = weight_of(registrations, registration_weight)
            + weight_of(strangers, registration_weight)
            + replacing.len() * 16
            + unheard.len() * 4
            + (ids_wanted.len() + ids_granted.len()) * 24
            + weight_of(topics_wanted, |name| 8 + name.len())
            + weight_of(forwards, Forward::weight)
            + weight_of(forwarded, |it| 16 + it.response.len());
        let questions = weight_of(transaction_asks, TransactionAsk::weight)
            + marks_wanted.len() * 80
            + (transaction_answers.len() + marked.len()) * 16
            + weight_of(share_asks, |it| 80 + it.group_id.len() + it.batches.len() * 20)
            + weight_of(share_answers, |it| 48 + it.batches.len() * 20);
        let fast = weight_of(holds_given, |it| 104 + it.batches.len())
            + weight_of(adoptions, |it| 64 + it.batches.len())
            + (holds_wanted.len() + lacks.len()) * 80;
        256 + logs + nodes + questions + fast
    }

    /// CRC-32C of the rest, version, length of the body, the body without payload, the length of each payload, and the
    /// payloads as they are. Whoever carries it says where it ends.
    pub fn into_parts(mut self) -> Vec<Bytes> {
        let letters = self.0.letters.iter_mut();
        let payloads = letters.flat_map(|letter| &mut letter.payloads);
        let payloads: Vec<Bytes> = payloads.map(std::mem::take).collect();
        let length = |bytes: usize| u32::try_from(bytes).expect("of at most 100 MiB");
        let mut head = Encoder::with_capacity(self.weight());
        head.u32(0);
        head.i16(VERSION);
        head.u32(0);
        self.0.encode(&mut head, VERSION).expect("version 0 carries every field");
        let body = length(head.len() - HEAD_BYTES);
        for payload in &payloads {
            head.u32(length(payload.len()));
        }
        let mut head = head.into_bytes();
        head[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&body.to_be_bytes());
        let of_head = crc32c::crc32c(&head[4..]);
        let crc = payloads.iter().fold(of_head, |crc, it| crc32c::crc32c_append(crc, it));
        head[..4].copy_from_slice(&crc.to_be_bytes());
        std::iter::once(head.freeze()).chain(payloads).collect()
    }

    /// Encodes all parts as one.
    pub fn encode(&self) -> Bytes {
        Bytes::from(self.clone().into_parts().concat())
    }

    /// Reads [`PeerFrame::encode`].
    pub fn decode(bytes: &Bytes) -> Result<Self, NoFrame> {
        let Some((crc, rest)) = bytes.split_first_chunk::<4>() else { return Err(NoFrame::Harmed) };
        if bytes.len() < HEAD_BYTES || u32::from_be_bytes(*crc) != crc32c::crc32c(rest) {
            return Err(NoFrame::Harmed);
        }
        let version = i16::from_be_bytes([rest[0], rest[1]]);
        if version != VERSION {
            return Err(NoFrame::Version(version));
        }
        Self::decode_body(bytes).ok_or(NoFrame::Malformed)
    }

    fn decode_body(bytes: &Bytes) -> Option<Self> {
        let (_, length) = bytes[..HEAD_BYTES].split_last_chunk::<4>()?;
        let end = HEAD_BYTES.checked_add(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        if end > bytes.len() {
            return None;
        }
        let mut d = Decoder::new(bytes.slice(HEAD_BYTES..end)).with_elements_max(ELEMENTS_MAX);
        let mut frame = Frame::decode(&mut d, VERSION).ok()?;
        d.finish().ok()?;
        let payloads = frame.letters.iter_mut().flat_map(|letter| &mut letter.payloads);
        let payloads: Vec<&mut Bytes> = payloads.collect();
        let mut lengths = bytes.slice(end..);
        let mut rest = lengths
            .split_off(payloads.len().checked_mul(LENGTH_BYTES).filter(|at| *at <= lengths.len())?);
        for (payload, length) in payloads.into_iter().zip(lengths.chunks_exact(LENGTH_BYTES)) {
            let length = u32::from_be_bytes(length.try_into().expect("of this size"));
            let length = usize::try_from(length).ok().filter(|length| *length <= rest.len())?;
            if !payload.is_empty() {
                return None;
            }
            *payload = rest.split_to(length);
        }
        rest.is_empty().then_some(Self(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata_records::Endpoint;

    fn frame() -> PeerFrame {
        let entry = LetterEntry { term: 2, index: 9, data: vec![1; 57].into(), kind: 0 };
        let letter = Letter {
            topic_id: Uuid::from_u128(5),
            kind: 3,
            from: 1,
            to: 2,
            entries: vec![entry],
            payloads: vec![vec![7; 100].into(), vec![8; 3].into()],
            ..Letter::default()
        };
        PeerFrame(Frame {
            cluster_id: Uuid::from_u128(1),
            broker_id: 2,
            letters: vec![letter],
            leads: vec![Lead { term: 4, lacking: vec![2], ..Lead::default() }],
            ids_wanted: vec![3],
            topics_wanted: vec!["t".to_owned()],
            ..Frame::default()
        })
    }

    #[test]
    fn a_frame_reads_back() {
        assert_eq!(PeerFrame::decode(&frame().encode()), Ok(frame()));
    }

    #[test]
    fn what_a_later_build_says_in_tagged_fields_is_passed_over() {
        let of_now = frame().encode();
        let length = u32::from_be_bytes(of_now[6..HEAD_BYTES].try_into().expect("4 bytes"));
        let end = HEAD_BYTES + usize::try_from(length).expect("small");
        assert_eq!(of_now[end - 1], 0, "the body ends with the count of its tagged fields");
        let mut later = [&of_now[..end - 1], &[1, 100, 3, 1, 2, 3], &of_now[end..]].concat();
        later[6..HEAD_BYTES].copy_from_slice(&(length + 5).to_be_bytes());
        let crc = crc32c::crc32c(&later[4..]);
        later[..4].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(PeerFrame::decode(&later.into()), Ok(frame()));
    }

    #[test]
    fn payload_is_not_copied() {
        let payloads = |frame: &PeerFrame| -> Vec<Bytes> {
            frame.0.letters.iter().flat_map(|letter| letter.payloads.clone()).collect()
        };
        let before = frame();
        let there = payloads(&before);
        let parts = before.into_parts();
        assert_eq!(
            there.iter().map(|payload| payload.as_ptr()).collect::<Vec<_>>(),
            [parts[1].as_ptr(), parts[2].as_ptr()]
        );
        let bytes = Bytes::from(parts.concat());
        let read = payloads(&PeerFrame::decode(&bytes).expect("it is ours"));
        let within = bytes.as_ptr_range();
        assert!(read.iter().all(|payload| within.contains(&payload.as_ptr())));
        assert!(frame().weight() >= read.iter().map(Bytes::len).sum());
    }

    /// Returns every list of a frame, each with an element whose texts and blobs are long.
    fn lists() -> Vec<(&'static str, Frame)> {
        let text = "t".repeat(200);
        let blob = Bytes::from(vec![7; 200]);
        let endpoint =
            Endpoint { listener: text.clone(), host: text.clone(), ..Endpoint::default() };
        let broker = RegisterBroker {
            endpoints: vec![endpoint],
            rack: Some(text.clone()),
            ..RegisterBroker::default()
        };
        let batches = vec![ShareBatch::default(); 50];
        let entries = vec![LetterEntry { data: blob.clone(), ..LetterEntry::default() }; 3];
        let letter = Letter {
            context: blob.clone(),
            entries,
            payloads: vec![blob.clone(); 2],
            ..Letter::default()
        };
        let forward = Forward {
            principal: text.clone(),
            listener: text.clone(),
            client_host: text.clone(),
            request: blob.clone(),
            ..Forward::default()
        };
        let ask = TransactionAsk {
            transactional_id: text.clone(),
            topic: text.clone(),
            ..TransactionAsk::default()
        };
        let share_ask =
            ShareAsk { group_id: text.clone(), batches: batches.clone(), ..ShareAsk::default() };
        let asleep = Asleep { sleepers: vec![Sleeper::default()], ..Asleep::default() };
        macro_rules! each {
            ($($field:ident: $value:expr;)*) => {
                vec![$((stringify!($field), Frame { $field: $value, ..Frame::default() })),*]
            };
        }
        each! {
            letters: vec![letter];
            leads: vec![Lead { lacking: vec![1; 50], ..Lead::default() }];
            registrations: vec![broker.clone()];
            ids_wanted: vec![1];
            ids_granted: vec![IdsGranted::default()];
            topics_wanted: vec![text];
            moves_wanted: vec![MoveWanted::default()];
            forwards: vec![forward];
            forwarded: vec![Forwarded { response: blob.clone(), ..Forwarded::default() }];
            reassigned: vec![Reassigned::default()];
            useless: vec![Useless::default()];
            asleep: asleep;
            ranges_wanted: vec![RangeWanted::default()];
            ranges_given: vec![RangeGiven { batches: blob.clone(), ..RangeGiven::default() }];
            strangers: vec![broker];
            transaction_asks: vec![ask];
            transaction_answers: vec![TransactionAnswer::default()];
            marks_wanted: vec![MarkWanted::default()];
            marked: vec![Marked::default()];
            share_asks: vec![share_ask];
            share_answers: vec![ShareAnswer { batches, ..ShareAnswer::default() }];
            deliveries: vec![Delivery { batch: blob.clone(), ..Delivery::default() }];
            delivered: vec![Delivered::default()];
            prefixes_wanted: vec![PrefixWanted::default()];
            prefixes_given: vec![PrefixGiven { batches: blob.clone(), ..PrefixGiven::default() }];
            holds_wanted: vec![HoldsWanted::default()];
            holds_given: vec![HoldsGiven { batches: blob, ..HoldsGiven::default() }];
            unheard: vec![1];
            replacing: vec![Uuid::default()];
        }
    }

    #[test]
    fn every_list_of_a_frame_counts_toward_its_weight() {
        let bytes = |frame: Frame| PeerFrame(frame).encode().len();
        let empty = Frame::default();
        let (weight, len) = (PeerFrame(empty.clone()).weight(), bytes(empty));
        assert!(weight >= len);
        for (list, frame) in lists() {
            let more = PeerFrame(frame.clone()).weight() - weight;
            // A tagged field brings its tag and its length, once a frame.
            assert!(more + 8 >= bytes(frame) - len, "{list}: {more}");
            assert!(more > 0, "{list}");
        }
    }

    #[test]
    fn a_harmed_frame_is_none() {
        let bytes = frame().encode();
        for len in 0..bytes.len() {
            assert_eq!(PeerFrame::decode(&bytes.slice(..len)), Err(NoFrame::Harmed));
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PeerFrame::decode(&bad.into()), Err(NoFrame::Harmed));
        }
    }

    #[test]
    fn what_a_hostile_sender_signs_is_bounded_and_never_believed() {
        let good = frame().encode();
        for at in 4..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.to_vec();
                bad[at] = value;
                let crc = crc32c::crc32c(&bad[4..]);
                bad[..4].copy_from_slice(&crc.to_be_bytes());
                // Whatever it says, it is an answer, and soon.
                let _ = PeerFrame::decode(&bad.into());
            }
        }
        let mut newer = good.to_vec();
        newer[5] = 1;
        let crc = crc32c::crc32c(&newer[4..]);
        newer[..4].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(PeerFrame::decode(&newer.into()), Err(NoFrame::Version(1)));
    }
}
