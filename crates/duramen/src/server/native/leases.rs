//! The operations of workers, in the messages of the protocol. A lease asks all nodes that lead partitions of a topic;
//! a settlement goes to each leader; dead letters go back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::iter::once;
use std::time::{Duration, Instant};

use duramen_broker::native::{
    self, Answer, Decision, Leased, LeasedPart, Log, Op, Place, Problem, Target,
};
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::calls::{Call, Caller, Calls, Origin};
use super::forwarding::{Forwarding, carry};
use super::identify::passed_on;
use super::logs::Logs;
use super::problems::Fault;
use super::queues::{PAGE_BYTES, PAGE_BYTES_MAX, Queues};
use super::reading::{WAIT_MS_MAX, written};
use super::selecting::EDIT_HEADERS;
use crate::proto;
use crate::proto::{
    LeaseRequest, LeaseResponse, RedriveRequest, RedriveResponse, SettleRequest, SettleResponse,
    Settlement, Unsettled,
};

/// Most records of one lease call, and most settlements of one call.
const LEASES_MAX: u32 = 1_000;
/// Characters of a worker's name.
const WORKER_MAX: usize = 36;
/// Longest delay of a released record, in milliseconds: a year.
const DELAY_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;

/// Time in which an answer comes that another node gave before it heard that the wait is over.
const ON_THE_WAY: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    pub logs: Logs,
    pub queues: Queues,
}

/// Records of one partition that a worker of this call is to get. Those that it does not get are handed back.
struct Held {
    calls: Calls,
    caller: Caller,
    settle: native::Settle,
    /// By offset.
    fates: BTreeMap<i64, native::Settlement>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.fates.is_empty() {
            return;
        }
        let settlements = std::mem::take(&mut self.fates).into_values().collect();
        let op = Box::new(Op::Settle(native::Settle { settlements, ..self.settle.clone() }));
        let (calls, caller) = (self.calls.clone(), self.caller.clone());
        tokio::spawn(async move { calls.begin(&caller).operate(op).await });
    }
}

impl Held {
    fn of(calls: &Calls, caller: &Caller, request: &LeaseRequest, part: &LeasedPart) -> Self {
        let log = Log { topic: request.topic.clone(), partition: part.partition };
        let unseen = |&(offset, deliveries): &(i64, i16)| {
            let decision = Decision::Unseen;
            (offset, native::Settlement { offset, deliveries, decision })
        };
        let settle = native::Settle {
            target: Target::Log(log),
            group: request.group.clone(),
            worker: request.worker.clone(),
            settlements: Vec::new(),
        };
        let fates = part.records.iter().map(unseen).collect();
        Self { calls: calls.clone(), caller: caller.clone(), settle, fates }
    }

    /// Notes that the worker gets a record.
    fn hand_over(&mut self, offset: i64) {
        self.fates.remove(&offset);
    }

    /// Notes that a record is gone.
    fn give_up(&mut self, offset: i64) {
        if let Some(it) = self.fates.get_mut(&offset) {
            it.decision = Decision::Gone;
        }
    }
}

fn name_of(partition: i32, offset: i64, deliveries: i16) -> String {
    format!("{partition}.{offset}.{deliveries}")
}

/// Reads the name of a lease.
fn parts_of(lease: &str) -> Option<(i32, i64, i16)> {
    let mut parts = lease.split('.');
    let (partition, offset) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let deliveries = parts.next()?.parse().ok()?;
    let is_sound = partition >= 0 && offset >= 0 && deliveries > 0 && parts.next().is_none();
    is_sound.then_some((partition, offset, deliveries))
}

fn check_names(group: &str, worker: &str, errors: &mut Vec<(&'static str, String)>) {
    if group.trim().is_empty() {
        errors.push(("group", "a group has a name".to_owned()));
    }
    if worker.chars().count() > WORKER_MAX {
        errors.push(("worker", format!("a worker's name has at most {WORKER_MAX} characters")));
    }
}

fn lease_of(request: &LeaseRequest, wait_ms: u32) -> Result<Op, Fault> {
    let mut errors = Vec::new();
    let mut bound = |field, wanted: u32, usual: u32, most: u32| {
        if wanted > most {
            errors.push((field, format!("it is at most {most}")));
        }
        if wanted == 0 { usual } else { wanted }
    };
    let records = bound("limit", request.limit, 1, LEASES_MAX);
    let bytes = bound("bytes", request.bytes, PAGE_BYTES, PAGE_BYTES_MAX);
    bound("wait_ms", request.wait_ms, 0, WAIT_MS_MAX);
    check_names(&request.group, &request.worker, &mut errors);
    if request.topic.is_empty() {
        errors.push(("topic", "a topic has a name".to_owned()));
    }
    if request.partition.is_some_and(|it| it < 0) {
        errors.push(("partition", "it is not negative".to_owned()));
    }
    if !errors.is_empty() {
        return Err(Fault::bad_request(&errors));
    }
    let partition = request.partition.unwrap_or(-1);
    Ok(Op::Lease(native::Lease {
        target: Target::Log(Log { topic: request.topic.clone(), partition }),
        group: request.group.clone(),
        worker: request.worker.clone(),
        records: records.into(),
        bytes: bytes.into(),
        wait_ms: i32::try_from(wait_ms).unwrap_or(i32::MAX),
    }))
}

/// Waits of one call, at this node and at others.
type Waits = FuturesUnordered<BoxFuture<'static, Result<LeaseResponse, Fault>>>;
/// Leases of one node, and the other nodes that lead partitions.
type Found = (LeaseResponse, Vec<Place>);

impl Leases {
    fn forwarding(&self) -> &Forwarding {
        &self.queues.forwarding
    }

    /// Leases records, at the nodes that have some: here first, then at the others.
    pub(crate) async fn lease(
        &self,
        origin: &Origin,
        request: LeaseRequest,
    ) -> Result<LeaseResponse, Fault> {
        lease_of(&request, 0)?;
        if origin.is_passed_on || request.partition.is_some() {
            let wait_ms = request.wait_ms;
            return Ok(self.lease_here(origin, &request, wait_ms).await?.0);
        }
        let limit = request.limit.max(1);
        let until = Instant::now() + Duration::from_millis(request.wait_ms.into());
        loop {
            let (mut answer, others) = self.lease_here(origin, &request, 0).await?;
            for place in others.iter().copied() {
                let taken = u32::try_from(answer.leases.len()).unwrap_or(u32::MAX);
                if taken >= limit {
                    break;
                }
                let rest = LeaseRequest { limit: limit - taken, wait_ms: 0, ..request.clone() };
                // A node that fails has another chance with the next call.
                if let Ok(more) = self.lease_there(origin, place, rest).await {
                    answer.lock_ms = answer.lock_ms.max(more.lock_ms);
                    answer.leases.extend(more.leases);
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if !answer.leases.is_empty() || left.is_zero() {
                return Ok(answer);
            }
            let wait_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
            let answer = self.await_lease(origin, &request, &others, wait_ms).await?;
            if !answer.leases.is_empty() {
                return Ok(answer);
            }
        }
    }

    /// Waits at all nodes at once for the first records.
    async fn await_lease(
        &self,
        origin: &Origin,
        request: &LeaseRequest,
        others: &[Place],
        wait_ms: u32,
    ) -> Result<LeaseResponse, Fault> {
        let request = LeaseRequest { wait_ms, ..request.clone() };
        let mut waits = Waits::new();
        for place in once(None).chain(others.iter().copied().map(Some)) {
            let (leases, origin, request) = (self.clone(), origin.clone(), request.clone());
            waits.push(Box::pin(async move {
                match place {
                    Some(place) => leases.lease_there(&origin, place, request).await,
                    None => leases.lease_here(&origin, &request, wait_ms).await.map(|it| it.0),
                }
            }));
        }
        let (mut last, mut is_any) = (Ok(LeaseResponse::default()), false);
        while let Some(answer) = waits.next().await {
            match answer {
                Ok(answer) if !answer.leases.is_empty() => {
                    let (leases, origin) = (self.clone(), origin.clone());
                    tokio::spawn(async move { leases.hand_back(&origin, &request, waits).await });
                    return Ok(answer);
                }
                // A node that leads no partition has nothing to wait for.
                Ok(_) => is_any = true,
                Err(fault) => last = Err(fault),
            }
        }
        if is_any { Ok(LeaseResponse::default()) } else { last }
    }

    /// Hands back records that other nodes found at the same time: their answers are on the way.
    async fn hand_back(&self, origin: &Origin, request: &LeaseRequest, mut waits: Waits) {
        let all = async {
            while let Some(answer) = waits.next().await {
                let leases = answer.map(|it| it.leases).unwrap_or_default();
                if leases.is_empty() {
                    continue;
                }
                let unseen = |it: proto::Leased| Settlement {
                    lease: it.lease,
                    decision: proto::Decision::Unseen.into(),
                    delay_ms: 0,
                };
                let settle = SettleRequest {
                    topic: request.topic.clone(),
                    group: request.group.clone(),
                    worker: request.worker.clone(),
                    settlements: leases.into_iter().map(unseen).collect(),
                };
                // Otherwise the lock ends.
                let _ = self.settle(origin, settle).await;
            }
        };
        let _ = tokio::time::timeout(ON_THE_WAY, all).await;
    }

    async fn lease_there(
        &self,
        origin: &Origin,
        place: Place,
        request: LeaseRequest,
    ) -> Result<LeaseResponse, Fault> {
        let mut node = self.forwarding().leases(place);
        let mut call = self.queues.calls.begin(&origin.caller);
        let answer = call.elsewhere(node.lease(passed_on(origin, request))).await?;
        answer.map(tonic::Response::into_inner).map_err(|it| Fault::of_status(&it).of_a_read())
    }

    async fn lease_here(
        &self,
        origin: &Origin,
        request: &LeaseRequest,
        wait_ms: u32,
    ) -> Result<Found, Fault> {
        let until = Instant::now() + Duration::from_millis(wait_ms.into());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            let op = lease_of(request, wait_ms)?;
            let (calls, caller) = (&self.queues.calls, &origin.caller);
            let pass = async |place: Place| {
                let mut node = self.forwarding().leases(place);
                let answer = node.lease(passed_on(origin, request.clone())).await?.into_inner();
                Ok(tonic::Response::new((answer, Vec::new())))
            };
            let finish = async |call: Call, answer| {
                let Answer::Leased(leased) = answer else { unreachable!("it answers no lease") };
                read(&call, (calls, caller), request, leased).await
            };
            let found: Result<Found, Fault> = carry(calls, origin, Ok(op), pass, finish).await;
            let found = found.map_err(Fault::of_a_read)?;
            // All that it got is gone.
            let is_over = Instant::now() >= until;
            if !found.0.leases.is_empty() || is_over || left.is_zero() {
                return Ok(found);
            }
        }
    }

    /// Settles leases, those of each partition at once.
    pub(crate) async fn settle(
        &self,
        origin: &Origin,
        request: SettleRequest,
    ) -> Result<SettleResponse, Fault> {
        let parts = settlements_of(&request)?;
        let settles = parts.into_iter().map(async |(partition, (said, settlements))| {
            let message = SettleRequest { settlements: said, ..request.clone() };
            let log = Log { topic: request.topic.clone(), partition };
            let op = native::Settle {
                target: Target::Log(log),
                group: request.group.clone(),
                worker: request.worker.clone(),
                settlements,
            };
            let names: Vec<String> =
                message.settlements.iter().map(|it| it.lease.clone()).collect();
            (names, self.settle_one(origin, op, message).await)
        });
        let (mut unsettled, mut failed, mut count) = (Vec::new(), None, 0);
        for (names, outcome) in join_all(settles).await {
            match outcome {
                Ok(answer) => {
                    unsettled.extend(answer.unsettled);
                    count += 1;
                }
                Err(fault) => {
                    let problem = || Some(fault.clone().into());
                    let each = |lease| Unsettled { lease, problem: problem() };
                    unsettled.extend(names.into_iter().map(each));
                    failed = Some(fault);
                }
            }
        }
        match failed {
            Some(fault) if count == 0 => Err(fault),
            _ => Ok(SettleResponse { unsettled }),
        }
    }

    async fn settle_one(
        &self,
        origin: &Origin,
        op: native::Settle,
        message: SettleRequest,
    ) -> Result<SettleResponse, Fault> {
        let deliveries: HashMap<i64, String> = message
            .settlements
            .iter()
            .filter_map(|it| Some((parts_of(&it.lease)?.1, it.lease.clone())))
            .collect();
        let pass = async |place: Place| {
            let mut node = self.forwarding().leases(place);
            node.settle(passed_on(origin, message)).await
        };
        let finish = async |_, answer| {
            let Answer::Settled(lost) = answer else { unreachable!("it answers no settlement") };
            let unsettled = lost.into_iter().map(|offset| Unsettled {
                lease: deliveries.get(&offset).cloned().unwrap_or_default(),
                problem: Some(Fault::from(Problem::LeaseLost).into()),
            });
            Ok(SettleResponse { unsettled: unsettled.collect() })
        };
        carry(&self.queues.calls, origin, Ok(Op::Settle(op)), pass, finish).await
    }
}

/// Settlements of a partition: as the client said them, and as the node takes them.
type Said = (Vec<Settlement>, Vec<native::Settlement>);

/// Reads settlements, by the partitions of their leases.
fn settlements_of(request: &SettleRequest) -> Result<BTreeMap<i32, Said>, Fault> {
    let mut errors = Vec::new();
    check_names(&request.group, &request.worker, &mut errors);
    let count = request.settlements.len();
    if count == 0 || count > LEASES_MAX as usize {
        errors.push(("settlements", format!("one call settles 1 to {LEASES_MAX} leases")));
    }
    let (mut parts, mut seen) = (BTreeMap::<i32, Said>::new(), BTreeSet::new());
    for it in &request.settlements {
        let Some((partition, offset, deliveries)) = parts_of(&it.lease) else {
            errors.push(("settlements", format!("{:?} is the name of no lease", it.lease)));
            continue;
        };
        let decision = match proto::Decision::try_from(it.decision) {
            Ok(proto::Decision::Accept) => Decision::Accept,
            Ok(proto::Decision::Release) => {
                let delay_ms = it.delay_ms.min(DELAY_MS_MAX);
                Decision::Release { delay_ms: i64::try_from(delay_ms).unwrap_or(i64::MAX) }
            }
            Ok(proto::Decision::Reject) => Decision::Reject,
            Ok(proto::Decision::Renew) => Decision::Renew,
            Ok(proto::Decision::Unseen) => Decision::Unseen,
            Err(_) => {
                errors.push(("settlements", format!("{} is no decision", it.decision)));
                continue;
            }
        };
        if it.delay_ms > 0 && !matches!(decision, Decision::Release { .. }) {
            errors.push(("settlements", "only a released record may be delayed".to_owned()));
        }
        if !seen.insert((partition, offset)) {
            errors
                .push(("settlements", format!("{} is of a record that is there twice", it.lease)));
        }
        let part = parts.entry(partition).or_default();
        part.0.push(it.clone());
        part.1.push(native::Settlement { offset, deliveries, decision });
    }
    if errors.is_empty() { Ok(parts) } else { Err(Fault::bad_request(&errors)) }
}

/// Reads the records of leases. Those that are gone are settled, and those that do not fit are handed back.
async fn read(
    call: &Call,
    (calls, caller): (&Calls, &Caller),
    request: &LeaseRequest,
    leased: Leased,
) -> Result<Found, Fault> {
    let others = leased.others.into_iter().filter_map(|(_, place)| place).collect();
    let lock_ms = leased.lock_ms.unsigned_abs();
    let mut held: Vec<(Held, LeasedPart)> = leased
        .parts
        .into_iter()
        .map(|part| (Held::of(calls, caller, request, &part), part))
        .collect();
    let (mut leases, mut bytes) = (Vec::new(), 0);
    for (held, part) in &mut held {
        let found = call.read_leased(part.clone(), |records, record, position| {
            let (mut message, size) = written(records, record, &EDIT_HEADERS);
            let (queue, version) = (message.key.take(), Some(records.offset(record)));
            let (position, fields) = (Some(position.into()), HashMap::new());
            let element = proto::ReadRecord { position, record: Some(message), fields, version };
            (queue, element, size)
        });
        for (&(offset, deliveries), found) in part.records.iter().zip(found.await?) {
            let Some((queue, element, size)) = found else {
                held.give_up(offset);
                continue;
            };
            if bytes > 0 && bytes + size > PAGE_BYTES_MAX as usize {
                continue;
            }
            bytes += size;
            held.hand_over(offset);
            leases.push(proto::Leased {
                lease: name_of(part.partition, offset, deliveries),
                queue,
                element: Some(element),
                deliveries: u32::from(deliveries.unsigned_abs()),
                partition: part.partition,
            });
        }
    }
    if leased.is_metered {
        call.consumed(bytes as u64);
    }
    Ok((LeaseResponse { leases, lock_ms }, others))
}

/// Group that leases dead letters to put them back.
const REDRIVE_GROUP: &str = "duramen-redrive";
/// Dead letters that go back in one step.
const REDRIVE_STEP: u32 = 100;
/// Most dead letters of one call, and their number if the client names none.
const REDRIVE_MAX: u32 = 10_000;
const REDRIVE_USUAL: u32 = 1_000;
/// Beginning of the names of headers that say of a dead letter where it comes from (KIP-1191).
const LETTER_HEADERS: &str = "__dlq.errors.";
/// Headers that would take a message away again at once, or hold it up.
const TIMES: [&str; 2] =
    [duramen_protocol::records::DELIVER_AT_HEADER, duramen_protocol::records::EXPIRES_HEADER];

/// Dead letter on its way back.
struct Letter {
    lease: String,
    group: String,
    /// The topic and the partition that it comes from.
    topic: String,
    partition: i32,
    record: proto::Record,
}

impl Letter {
    /// Reads a dead letter; `None` for a record that is none.
    fn of(leased: proto::Leased) -> Option<Self> {
        let mut record = leased.element?.record?;
        let text = |name: &str| {
            let header =
                record.headers.iter().find(|it| it.name.strip_prefix(LETTER_HEADERS) == Some(name));
            let value = header.and_then(|it| it.value.as_ref());
            value.and_then(|it| String::from_utf8(it.to_vec()).ok())
        };
        let (topic, group) = (text("topic")?, text("group").unwrap_or_default());
        let partition = text("partition").and_then(|it| it.parse().ok()).unwrap_or(0);
        let is_kept = |it: &proto::Header| {
            !it.name.starts_with(LETTER_HEADERS) && !TIMES.contains(&it.name.as_str())
        };
        record.headers.retain(is_kept);
        record.key = leased.queue;
        Some(Self { lease: leased.lease, group, topic, partition, record })
    }
}

/// Dead letters go back.
impl Leases {
    /// Puts dead letters back where they come from, and accepts each once it is there.
    pub(crate) async fn redrive(
        &self,
        origin: &Origin,
        request: RedriveRequest,
    ) -> Result<RedriveResponse, Fault> {
        if request.limit > REDRIVE_MAX {
            let reason = format!("one call puts back at most {REDRIVE_MAX}");
            return Err(Fault::bad_request(&[("limit", reason)]));
        }
        if request.topic == request.to {
            let reason = "dead letters do not go where they are".to_owned();
            return Err(Fault::bad_request(&[("to", reason)]));
        }
        let limit = if request.limit == 0 { REDRIVE_USUAL } else { request.limit };
        let mut answer = RedriveResponse::default();
        // Letters that stay are handed back in the end: before, they would come again at once.
        let mut left = Vec::new();
        let outcome = loop {
            let wanted = limit - answer.moved;
            if wanted == 0 || left.len() >= REDRIVE_MAX as usize {
                answer.more = true;
                break Ok(());
            }
            match self.redrive_step(origin, &request, wanted.min(REDRIVE_STEP), &mut left).await {
                Ok(Some(moved)) => answer.moved += moved,
                Ok(None) => break Ok(()),
                Err(fault) => break Err(fault),
            }
        };
        answer.left = u32::try_from(left.len()).unwrap_or(u32::MAX);
        for some in left.chunks(LEASES_MAX as usize) {
            self.settle_letters(origin, &request.topic, some, proto::Decision::Unseen).await?;
        }
        if answer.moved == 0 { outcome.map(|()| answer) } else { Ok(answer) }
    }

    /// Puts some dead letters back. Returns their number, or nothing if there were none.
    async fn redrive_step(
        &self,
        origin: &Origin,
        request: &RedriveRequest,
        limit: u32,
        left: &mut Vec<String>,
    ) -> Result<Option<u32>, Fault> {
        let wanted = LeaseRequest {
            topic: request.topic.clone(),
            group: REDRIVE_GROUP.to_owned(),
            limit,
            ..LeaseRequest::default()
        };
        let found = self.lease(origin, wanted).await?.leases;
        if found.is_empty() {
            return Ok(None);
        }
        let mut by_topic: BTreeMap<String, Vec<Letter>> = BTreeMap::new();
        for leased in found {
            let name = leased.lease.clone();
            let letter = Letter::of(leased);
            let is_wanted = |it: &Letter| request.group.is_empty() || it.group == request.group;
            match letter.filter(is_wanted) {
                Some(letter) => {
                    let to = if request.to.is_empty() { &letter.topic } else { &request.to };
                    by_topic.entry(to.clone()).or_default().push(letter);
                }
                None => left.push(name),
            }
        }
        let (mut moved, mut failed) = (0, None);
        for (topic, letters) in by_topic {
            let names: Vec<String> = letters.iter().map(|it| it.lease.clone()).collect();
            match self.put_back(origin, &topic, letters).await {
                Ok(stay) => {
                    let (stay, gone): (Vec<String>, Vec<String>) =
                        names.into_iter().partition(|it| stay.contains(it));
                    left.extend(stay);
                    if !gone.is_empty() {
                        let accept = proto::Decision::Accept;
                        self.settle_letters(origin, &request.topic, &gone, accept).await?;
                    }
                    moved += u32::try_from(gone.len()).unwrap_or(u32::MAX);
                }
                Err(fault) if fault.kind == super::problems::UNKNOWN_TOPIC => left.extend(names),
                Err(fault) => {
                    left.extend(names);
                    failed = Some(fault);
                }
            }
        }
        failed.map_or(Ok(Some(moved)), Err)
    }

    /// Appends dead letters to a topic: each to its queue, or to the partition that it comes from. Returns the leases
    /// of those that stay, since they have no queue.
    async fn put_back(
        &self,
        origin: &Origin,
        topic: &str,
        letters: Vec<Letter>,
    ) -> Result<HashSet<String>, Fault> {
        let caller = &origin.caller;
        let name = topic.to_owned();
        let known = self.queues.topics.get(caller, proto::GetTopicRequest { name }).await?;
        if known.settings.get("queue.enable").is_some_and(|it| it == "true") {
            let message = |letter: Letter| {
                let queue = letter.record.key.clone().unwrap_or_default();
                let message = proto::Record { key: None, ..letter.record };
                proto::QueueMessage { queue, message: Some(message) }
            };
            let has_queue = |it: &Letter| it.record.key.as_ref().is_some_and(|key| !key.is_empty());
            let (letters, stay): (Vec<Letter>, Vec<Letter>) =
                letters.into_iter().partition(has_queue);
            let stay = stay.into_iter().map(|it| it.lease).collect();
            if letters.is_empty() {
                return Ok(stay);
            }
            let messages = letters.into_iter().map(message).collect();
            let request =
                proto::EnqueueManyRequest { topic: topic.to_owned(), messages, timeout_ms: 0 };
            let answer = self.queues.enqueue_many(origin, request).await?;
            let problem = answer.results.into_iter().find_map(|it| match it.result {
                Some(proto::enqueue_result::Result::Problem(problem)) => Some(problem),
                _ => None,
            });
            return problem.map_or(Ok(stay), |problem| Err(problem.into()));
        }
        let mut parts: BTreeMap<i32, Vec<proto::Record>> = BTreeMap::new();
        for letter in letters {
            let partition = letter.partition.rem_euclid(known.partitions.max(1));
            parts.entry(partition).or_default().push(letter.record);
        }
        for (partition, records) in parts {
            let topic = topic.to_owned();
            let request = proto::AppendRequest { topic, partition, records, ..Default::default() };
            self.logs.append(origin, request).await?;
        }
        Ok(HashSet::new())
    }

    async fn settle_letters(
        &self,
        origin: &Origin,
        topic: &str,
        names: &[String],
        decision: proto::Decision,
    ) -> Result<(), Fault> {
        let said = |lease: &String| Settlement {
            lease: lease.clone(),
            decision: decision.into(),
            delay_ms: 0,
        };
        let request = SettleRequest {
            topic: topic.to_owned(),
            group: REDRIVE_GROUP.to_owned(),
            worker: String::new(),
            settlements: names.iter().map(said).collect(),
        };
        self.settle(origin, request).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn names_of_leases_are_read_back_and_nothing_else_is_one() {
        assert_eq!(parts_of(&name_of(3, 4711, 2)), Some((3, 4711, 2)));
        for wrong in ["", "1", "1.2", "1.2.0", "-1.2.3", "1.-2.3", "1.2.3.4", "a.b.c", "1.2.99999"]
        {
            assert_eq!(parts_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_dead_letter_goes_back_without_what_was_said_of_it() {
        let header = |name: &str, value: &'static str| proto::Header {
            name: name.to_owned(),
            value: Some(Bytes::from_static(value.as_bytes())),
        };
        let headers = vec![
            header("own", "1"),
            header("duramen-expires", "1"),
            header("__dlq.errors.topic", "work"),
            header("__dlq.errors.partition", "2"),
            header("__dlq.errors.group", "g"),
        ];
        let record = proto::Record { headers, ..Default::default() };
        let element = proto::ReadRecord { record: Some(record), ..Default::default() };
        let queue = Some(Bytes::from_static(b"k"));
        let leased = proto::Leased { queue, element: Some(element), ..Default::default() };
        let letter = Letter::of(leased).expect("it is a dead letter");
        assert_eq!((&*letter.topic, letter.partition, &*letter.group), ("work", 2, "g"));
        assert_eq!(letter.record.headers, [header("own", "1")]);
        assert_eq!(letter.record.key.as_deref(), Some(&b"k"[..]));
        assert!(Letter::of(proto::Leased::default()).is_none());
    }
}
