//! A batch that a replica holds beside its log is there at every start, from its report until it is let go: whatever is
//! cut, begins anew, is checkpointed or is overwritten in the journal meanwhile.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::compression::Codec;
use duramen_sim::batch::Records;
use duramen_sim::{Prng, SimDisk};
use duramen_storage::op::{
    Append, Beginning, ConfState, Content, HardState, Hold, HoldId, LogEntry, Stretch,
};
use duramen_storage::storage::Error;
use duramen_storage::{Descriptor, Done, Op, OpKind, ReplicaId, Storage};

use super::rig::{self, identity, options};

const REPLICA: ReplicaId = ReplicaId(7);
/// Seeds of which each ends the process at another of storage's calls of the disk.
const SEEDS: u64 = 400;
/// Rounds of writes that the journal does not hold at once.
const WRITES: u64 = 40;

fn batch(offset: i64, term: u64, size: usize) -> Bytes {
    let records = Records {
        timestamps: vec![offset],
        value: vec![u8::try_from(offset % 251).unwrap(); size],
        producer: (7, 0, 1),
        log_append_time: false,
        codec: Codec::None,
    };
    records.encode(offset, term).into()
}

struct World {
    disk: SimDisk,
    storage: Storage<SimDisk>,
    /// The last entry: its index and term, and the end offset.
    last: (u64, u64, i64),
    reported: BTreeMap<HoldId, Bytes>,
    submitted: BTreeMap<HoldId, Bytes>,
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let (mut storage, _) = Storage::open(disk.clone(), options()).unwrap();
        let conf = ConfState { voters: vec![7], applied: 1, ..ConfState::default() };
        let kind = OpKind::Create { ticket: 0, identity: identity(), conf };
        storage.submit(Op { replica: REPLICA, kind });
        let (reported, submitted) = (BTreeMap::new(), BTreeMap::new());
        let mut world = Self { disk, storage, last: (1, 1, 0), reported, submitted };
        world.settle().unwrap();
        world
    }

    fn submit(&mut self, kind: OpKind) {
        self.storage.submit(Op { replica: REPLICA, kind });
    }

    /// Holds a batch, as the first of its stretch or later.
    fn hold(&mut self, index: u64, number: u64) {
        self.hold_batch(index, number, batch(i64::try_from(number).unwrap(), 0, 700));
    }

    fn hold_batch(&mut self, index: u64, number: u64, payload: Bytes) {
        let id = HoldId { stretch: Stretch { term: 2, index }, number };
        self.submitted.insert(id, payload.clone());
        self.submit(OpKind::Hold(Hold { id, payload }));
    }

    fn let_go(&mut self, index: u64, number: u64) {
        let id = HoldId { stretch: Stretch { term: 2, index }, number };
        self.reported.remove(&id);
        self.submit(OpKind::LetGo(vec![id]));
    }

    /// Writes the entry at an index, and cuts what was behind it.
    fn write(&mut self, index: u64, size: usize) {
        assert!(index <= self.last.0 + 1);
        let offset = i64::try_from(index).unwrap() - 2;
        let term = if index <= self.last.0 { self.last.1 + 1 } else { self.last.1 };
        let payload = batch(offset, term, size);
        let descriptor = Descriptor::of_batch(&payload, offset == 0).unwrap();
        let entry = LogEntry { index, term, content: Content::Batch(descriptor) };
        let hard_state = Some(HardState { term, vote: 7, commit: 1 });
        let appends = vec![Append { entry, payload }];
        self.submit(OpKind::Write { ticket: index, appends, hard_state, must_sync: true });
        self.last = (index, term, offset + 1);
    }

    /// Begins the log anew, further ahead.
    fn begin_anew(&mut self) {
        let (index, term) = (self.last.0 + 100, self.last.1 + 1);
        let end_offset = i64::try_from(index).unwrap() - 1;
        let conf = ConfState { voters: vec![7], applied: index, ..ConfState::default() };
        let image = Bytes::from_static(b"view");
        let beginning = Beginning { index, term, end_offset, conf, image, given: None };
        self.submit(OpKind::Reset(Box::new(beginning)));
        self.last = (index, term, end_offset);
    }

    /// Brings all that is under way to its end.
    fn settle(&mut self) -> Result<(), Error> {
        let (index, reported, submitted) = (self.last.0, &mut self.reported, &self.submitted);
        // The last entry may be cut yet.
        let mut image = Some(index - 1);
        rig::settle(&mut self.storage, &self.disk, |storage, done| match done {
            Done::WantImage { .. } => {
                if let Some(index) = image.take() {
                    let image = Bytes::from_static(b"view");
                    let kind = OpKind::Image { index, image };
                    storage.submit(Op { replica: REPLICA, kind });
                }
            }
            Done::Held { hold, .. } => {
                reported.insert(*hold, submitted[hold].clone());
            }
            _ => {}
        })
        .map(|_| ())
    }

    /// Takes the reports that storage had made when the process ended.
    fn hear_reports(&mut self) {
        for done in self.storage.take_done() {
            if let Done::Held { hold, .. } = done {
                self.reported.insert(hold, self.submitted[&hold].clone());
            }
        }
    }

    /// Ends the process, starts it again, and checks that all that was reported is there.
    fn restart(&mut self, power: bool) -> Result<(), String> {
        self.disk.crash_in(None);
        self.disk = if power { self.disk.power_loss() } else { self.disk.kill() };
        let (storage, found) = Storage::open(self.disk.clone(), options()).unwrap();
        self.storage = storage;
        let found = &found.replicas[0].holds;
        if !found.is_sorted_by(|a, b| a.id < b.id) {
            return Err(format!("out of order: {found:?}"));
        }
        let found: BTreeMap<HoldId, Bytes> =
            found.iter().map(|hold| (hold.id, hold.payload.clone())).collect();
        if let Some(lost) = self.reported.keys().find(|id| !found.contains_key(id)) {
            return Err(format!("{lost:?} was reported, and is lost"));
        }
        match found.iter().find(|(id, payload)| self.submitted.get(id) != Some(payload)) {
            Some((id, _)) => Err(format!("{id:?} is not what was submitted")),
            None => Ok(()),
        }
    }

    /// Goes once through all that may happen to a replica with holds.
    fn live(&mut self) -> Result<(), Error> {
        self.write(2, 100);
        self.hold(1, 1);
        self.hold(1, 2);
        self.settle()?;
        // A checkpoint, and so many rounds behind it that the journal takes up all of its files anew.
        self.submit(OpKind::Settle);
        for _ in 0..WRITES {
            self.write(self.last.0 + 1, 3000);
            self.settle()?;
        }
        self.hold(9, 1);
        self.write(self.last.0, 100);
        self.hold(1, 3);
        self.settle()?;
        self.let_go(1, 2);
        self.begin_anew();
        self.hold(20, 7);
        self.settle()?;
        for _ in 0..WRITES {
            self.write(self.last.0 + 1, 3000);
            self.settle()?;
        }
        self.hold(20, 8);
        self.settle()
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    let calls = Prng::new(seed, "calls").between(1, 600);
    world.disk.crash_in(Some(calls));
    let power = !seed.is_multiple_of(3);
    match world.live() {
        Ok(()) => assert_eq!(world.reported.len(), 5, "all holds but one"),
        Err(_) => world.hear_reports(),
    }
    world.restart(power)?;
    // It goes on with what was found, and the next start finds that.
    world.hold(30, 1);
    world.settle().map_err(|error| error.to_string())?;
    world.restart(!power)
}

#[test]
fn a_crash_at_any_point_loses_no_hold_that_was_reported() {
    for seed in 1..=SEEDS {
        if let Err(error) = run(seed) {
            panic!("seed {seed}: {error}");
        }
    }
}

/// The records of a hold that was let go lie in the journal only until the next checkpoint.
#[test]
fn a_hold_that_was_let_go_is_forgotten_with_the_rounds_before_a_checkpoint() {
    let mut world = World::new(5);
    world.live().unwrap();
    world.restart(false).unwrap();
    let (_, found) = Storage::open(world.disk.kill(), options()).unwrap();
    let found: Vec<HoldId> = found.replicas[0].holds.iter().map(|hold| hold.id).collect();
    assert_eq!(found, world.reported.keys().copied().collect::<Vec<_>>());
}

/// Holds a batch, appends it with another header, and has that replayed.
fn append_what_is_held(world: &mut World) -> Result<(), String> {
    let journal_bytes = |world: &World| world.storage.metrics().journal_bytes;
    // Less than the journal takes at most, and more than fits into a page with its record.
    let size = 4000;
    world.hold_batch(1, 1, batch(0, 0, size));
    world.settle().unwrap();
    let mut written = Vec::new();
    for _ in 0..2 {
        let before = journal_bytes(world);
        world.write(world.last.0 + 1, size);
        world.settle().unwrap();
        written.push(journal_bytes(world) - before);
    }
    // The journal has whole pages.
    if written[0] + 4096 > written[1] {
        return Err(format!("the journal got the batch twice: {written:?}"));
    }
    world.disk = world.disk.power_loss();
    let (storage, found) =
        Storage::open(world.disk.clone(), options()).map_err(|it| it.to_string())?;
    let end = found.replicas[0].end_offset;
    assert_eq!(end, 2);
    for offset in 0..end {
        let range = storage.reader().locate(REPLICA, offset, end, 1, true).unwrap().unwrap();
        let bytes = storage.reader().read(REPLICA, &range).map_err(|it| it.to_string())?;
        if bytes[..] != batch(offset, 1, size)[..] {
            return Err(format!("batch {offset} is not the one that was appended"));
        }
    }
    Ok(())
}

/// A checkpoint writes holds anew: without ops since then, another one would free nothing.
#[test]
fn holds_that_fill_an_extent_make_no_checkpoint_after_another() {
    let mut world = World::new(4);
    for number in 1..16 {
        world.hold_batch(1, number, batch(i64::try_from(number).unwrap(), 0, 4000));
        world.settle().unwrap();
    }
    for _ in 0..WRITES {
        world.write(world.last.0 + 1, 3000);
        world.settle().unwrap();
    }
    for _ in 0..20 {
        world.settle().unwrap();
    }
    let rested = world.storage.metrics();
    for _ in 0..100 {
        world.settle().unwrap();
    }
    let later = world.storage.metrics();
    assert!(rested.checkpoints > 0, "the journal was half full");
    assert_eq!(
        (later.checkpoints, later.journal_bytes),
        (rested.checkpoints, rested.journal_bytes)
    );
}

#[test]
fn a_batch_that_is_held_goes_into_the_journal_once() {
    append_what_is_held(&mut World::new(3)).unwrap();
}

#[cfg(feature = "sabotage")]
#[test]
fn a_held_batch_that_is_replayed_as_it_was_held_is_found() {
    use duramen_storage::sabotage::{Bug, plant};

    plant(Some(Bug::HeldHeaderKept));
    let outcome = append_what_is_held(&mut World::new(3));
    plant(None);
    assert!(outcome.unwrap_err().contains("names a batch that is not there"));
}

#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_of_holds_are_found() {
    use duramen_storage::sabotage::{Bug, plant};

    let bugs = [
        Bug::HeldBeforeSync,
        Bug::CheckpointForgetsHeld,
        Bug::ResetForgetsHeld,
        Bug::HeldNotReplayed,
    ];
    for bug in bugs {
        plant(Some(bug));
        let found = (1..=SEEDS).find(|seed| run(*seed).is_err());
        plant(None);
        let seed = found.unwrap_or_else(|| panic!("nothing finds {bug:?}"));
        println!("{bug:?}: seed {seed}");
    }
}
