//! A member of a consumer group, by the classic protocol with eager rebalances. Whenever a member comes or goes, every
//! member gives up its partitions, joins again, and gets a new assignment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use duramen_protocol::DecodeError;
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::consumer_protocol::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition, decode, encode,
};
use duramen_protocol::messages::join_group::JoinGroupRequestProtocol;
use duramen_protocol::messages::leave_group::MemberIdentity;
use duramen_protocol::messages::sync_group::SyncGroupRequestAssignment;
use duramen_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest,
};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::assignors::{Assignor, Partitions, Subscriber};
use crate::backoff::Backoff;
use crate::call::Call;
use crate::client::{Client, KeyType};
use crate::connection::Connection;
use crate::error::Error;
use crate::offsets::{ByPartition, Committed, Committer, commit_offsets, fetch_offsets};

/// Protocol type of groups of consumers, as opposed to groups of Connect workers and others.
const PROTOCOL_TYPE: &str = "consumer";
/// Version of the messages to other members. All of them read it.
const MESSAGE_VERSION: i16 = 0;
/// Time between two looks of the leader for topics that have grown.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Longest time of a goodbye. Nobody needs it: the session ends by itself.
const GOODBYE_TIME: Duration = Duration::from_secs(5);
/// Pause between two tries to join, when the group itself asks for another.
const PAUSE: Duration = Duration::from_millis(50);

/// Options of a member of a group.
#[derive(Debug, Clone)]
pub struct MemberOptions {
    /// The group.
    pub group: String,
    /// Topics to read.
    pub topics: Vec<String>,
    /// Name that outlives the process. A member that comes back with it within the session timeout finds its
    /// partitions again, and no other member notices.
    pub instance_id: Option<String>,
    /// Longest time the group waits for a sign of life.
    pub session_timeout: Duration,
    /// Longest time the group waits for this member to join again.
    pub rebalance_timeout: Duration,
}

impl MemberOptions {
    /// Returns options with the times of Kafka's own consumer, except the second: there it is five minutes.
    pub fn new(group: impl Into<String>, topics: impl IntoIterator<Item = String>) -> Self {
        Self {
            group: group.into(),
            topics: topics.into_iter().collect(),
            instance_id: None,
            session_timeout: Duration::from_secs(45),
            rebalance_timeout: Duration::from_secs(60),
        }
    }
}

/// State of the membership, as the heartbeat knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The assignment holds.
    Well,
    /// The group rebalances. The member can still commit the offsets that it has read, and then has to join again.
    Gathering,
    /// The group goes on without this member. Other members read its uncommitted records again.
    Lost,
}

/// A member. Dropped without [`leave`](Self::leave) it is missed only when its session ends. Its connections must be
/// served while its owner is busy: it belongs on a runtime with a worker thread.
pub struct Member {
    options: MemberOptions,
    coordinator: Arc<Coordinator>,
    id: String,
    generation: i32,
    /// State that the heartbeat of this generation reports. The heartbeat ends when nobody listens.
    standing: Option<watch::Receiver<Standing>>,
    /// True while a request to join or to sync is under way, which may hold up later requests on its connection.
    joining: bool,
}

/// The group's coordinator, on a connection of its own: joins and fetches are long, and answers come in order.
struct Coordinator {
    client: Client,
    group: String,
    answer_within: Duration,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Coordinator {
    async fn connection(&self) -> Result<Arc<Connection>, Error> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_open()) {
            return Ok(connection.clone());
        }
        let node = self.client.find_coordinator(KeyType::Group, &self.group).await?;
        let address = self.client.address(node).await?;
        let mut options = self.client.options().clone();
        options.request_timeout = options.request_timeout.max(self.answer_within);
        let connection = Arc::new(Connection::open(&address, &options).await?);
        *slot = Some(connection.clone());
        Ok(connection)
    }

    async fn call<C: Call>(&self, request: &C) -> Result<C::Response, Error> {
        self.connection().await?.call(request).await
    }

    /// Looks for it anew next time.
    async fn forget(&self) {
        *self.connection.lock().await = None;
    }
}

impl Member {
    /// Makes a member that has not joined yet.
    pub fn new(client: &Client, options: MemberOptions) -> Self {
        let coordinator = Coordinator {
            client: client.clone(),
            group: options.group.clone(),
            answer_within: options.rebalance_timeout + Duration::from_secs(30),
            connection: Mutex::default(),
        };
        Self {
            options,
            coordinator: Arc::new(coordinator),
            id: String::new(),
            generation: -1,
            standing: None,
            joining: false,
        }
    }

    /// Returns the generation of the group that this member is part of; -1 before the first join.
    pub fn generation(&self) -> i32 {
        self.generation
    }

    /// Joins or rejoins the group, and returns the assigned partitions. Waits until all other members have joined, too.
    ///
    /// Fails if a retry cannot help, or after [`Options::retry_for`](crate::Options::retry_for) without a
    /// coordinator that answers.
    pub async fn join(&mut self) -> Result<Partitions, Error> {
        let patience = self.coordinator.client.options().retry_for;
        let mut backoff = Backoff::new(patience);
        self.standing = None;
        loop {
            let error = match self.try_join().await {
                Ok(assigned) => return Ok(assigned),
                Err(error) => error,
            };
            match error.code() {
                // The group asks for another try, however often it takes: that is not a failure.
                Some(ErrorCode::MemberIdRequired) => {}
                Some(ErrorCode::UnknownMemberId) => {
                    self.id.clear();
                    sleep(PAUSE).await;
                    backoff = Backoff::new(patience);
                }
                Some(ErrorCode::RebalanceInProgress | ErrorCode::IllegalGeneration) => {
                    sleep(PAUSE).await;
                    backoff = Backoff::new(patience);
                }
                // The others take their time. This member has an id by now, and finds its place again.
                _ if matches!(error, Error::TimedOut { .. }) => {
                    backoff = Backoff::new(patience);
                }
                _ if error.is_retriable() => {
                    self.coordinator.forget().await;
                    if !backoff.pause().await {
                        return Err(error);
                    }
                }
                _ => return Err(error),
            }
        }
    }

    async fn try_join(&mut self) -> Result<Partitions, Error> {
        self.joining = true;
        let joined = self.coordinator.call(&self.join_request()?).await?;
        let what = || format!("joining group {}", self.options.group);
        if !joined.member_id.is_empty() {
            self.id.clone_from(&joined.member_id);
        }
        Error::check(what, joined.error_code, None)?;
        self.generation = joined.generation_id;
        let mut counts = None;
        let mut assignments = Vec::new();
        if joined.leader == self.id && !joined.skip_assignment {
            let (shares, seen) = self.share(&joined).await?;
            assignments = shares;
            counts = Some(seen);
        }
        let request = SyncGroupRequest {
            group_id: self.options.group.clone(),
            generation_id: self.generation,
            member_id: self.id.clone(),
            group_instance_id: self.options.instance_id.clone(),
            protocol_type: Some(PROTOCOL_TYPE.into()),
            protocol_name: joined.protocol_name,
            assignments,
        };
        let synced = self.coordinator.call(&request).await?;
        Error::check(what, synced.error_code, None)?;
        self.joining = false;
        let assignment: ConsumerProtocolAssignment =
            decode(synced.assignment).map_err(|source| {
                self.garbled("the assignment that the group's leader made", &source)
            })?;
        self.standing = Some(self.start_heart(counts));
        let mut assigned = Partitions::new();
        for part in assignment.assigned_partitions {
            assigned.entry(part.topic).or_default().extend(part.partitions);
        }
        Ok(assigned)
    }

    fn join_request(&self) -> Result<JoinGroupRequest, Error> {
        let subscription = ConsumerProtocolSubscription {
            topics: self.options.topics.clone(),
            ..ConsumerProtocolSubscription::default()
        };
        let metadata = encode(&subscription, MESSAGE_VERSION)
            .map_err(|source| Error::Inexpressible { api: "JoinGroup", source })?;
        let protocol = |assignor: Assignor| JoinGroupRequestProtocol {
            name: assignor.name().into(),
            metadata: metadata.clone(),
        };
        Ok(JoinGroupRequest {
            group_id: self.options.group.clone(),
            session_timeout_ms: milliseconds(self.options.session_timeout),
            rebalance_timeout_ms: milliseconds(self.options.rebalance_timeout),
            member_id: self.id.clone(),
            group_instance_id: self.options.instance_id.clone(),
            protocol_type: PROTOCOL_TYPE.into(),
            protocols: Assignor::ALL.map(protocol).into(),
            reason: None,
        })
    }

    /// Does the leader's work: assigns partitions to each member, and returns the number of partitions that the topics
    /// had then.
    async fn share(
        &self,
        joined: &JoinGroupResponse,
    ) -> Result<(Vec<SyncGroupRequestAssignment>, BTreeMap<String, i32>), Error> {
        let mut members = Vec::new();
        for member in &joined.members {
            let subscription: ConsumerProtocolSubscription = decode(member.metadata.clone())
                .map_err(|source| self.garbled("what another member wants to read", &source))?;
            members.push(Subscriber {
                member_id: member.member_id.clone(),
                instance_id: member.group_instance_id.clone(),
                topics: subscription.topics,
            });
        }
        let topics: BTreeSet<String> =
            members.iter().flat_map(|member| &member.topics).cloned().collect();
        let counts = partition_counts(&self.coordinator.client, &topics).await?;
        let name = joined.protocol_name.as_deref().unwrap_or_default();
        let assignor = Assignor::of_name(name).ok_or_else(|| {
            let what = format!("sharing partitions by `{name}`");
            Error::refused(what, ErrorCode::InconsistentGroupProtocol.code(), None)
        })?;
        let mut assignments = Vec::new();
        for (member_id, share) in assignor.share(members, &counts) {
            let assigned_partitions = share
                .into_iter()
                .map(|(topic, partitions)| TopicPartition { topic, partitions })
                .collect();
            let assignment = ConsumerProtocolAssignment { assigned_partitions, user_data: None };
            let assignment = encode(&assignment, MESSAGE_VERSION)
                .map_err(|source| Error::Inexpressible { api: "SyncGroup", source })?;
            assignments.push(SyncGroupRequestAssignment { member_id, assignment });
        }
        Ok((assignments, counts))
    }

    fn garbled(&self, what: &str, source: &DecodeError) -> Error {
        let message = Some(format!("{what} is not understood: {source}"));
        let what = format!("joining group {}", self.options.group);
        Error::refused(what, ErrorCode::InconsistentGroupProtocol.code(), message)
    }

    /// Starts the heartbeat of this generation, on a thread that waits for nothing else: the reader may be busy.
    fn start_heart(&self, counts: Option<BTreeMap<String, i32>>) -> watch::Receiver<Standing> {
        let (tell, standing) = watch::channel(Standing::Well);
        let request = HeartbeatRequest {
            group_id: self.options.group.clone(),
            generation_id: self.generation,
            member_id: self.id.clone(),
            group_instance_id: self.options.instance_id.clone(),
        };
        let session = self.options.session_timeout;
        let coordinator = self.coordinator.clone();
        let runtime = Handle::current();
        runtime.clone().spawn_blocking(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = beat(&coordinator, &request, session, counts, &tell) => {}
                    () = tell.closed() => {}
                }
            });
        });
        standing
    }

    /// Waits until the assignment holds no longer. May be dropped and called again.
    pub async fn disturbed(&mut self) -> Standing {
        let Some(standing) = &mut self.standing else { return Standing::Lost };
        let changed = standing.wait_for(|standing| *standing != Standing::Well).await;
        changed.map_or(Standing::Lost, |standing| *standing)
    }

    /// Returns the offsets that the group has committed for these partitions; those without one are left out.
    pub async fn committed(&self, of: &Partitions) -> Result<ByPartition<Committed>, Error> {
        let coordinator = &self.coordinator;
        let group = &self.options.group;
        coordinator
            .client
            .retry(async || {
                let fetched =
                    fetch_offsets(&*coordinator.connection().await?, group, Some(of)).await;
                if fetched.is_err() {
                    coordinator.forget().await;
                }
                fetched
            })
            .await
    }

    /// Commits the next offset to be read of each partition.
    ///
    /// Fails with `ILLEGAL_GENERATION`, `UNKNOWN_MEMBER_ID` or `REBALANCE_IN_PROGRESS` if the group has gone on.
    pub async fn commit(&self, offsets: &ByPartition<i64>) -> Result<(), Error> {
        let coordinator = &self.coordinator;
        let committer = Committer {
            generation: self.generation,
            member_id: self.id.clone(),
            instance_id: self.options.instance_id.clone(),
        };
        coordinator
            .client
            .retry(async || {
                let connection = coordinator.connection().await?;
                let outcome =
                    commit_offsets(&connection, &self.options.group, &committer, offsets).await;
                if outcome.as_ref().is_err_and(Error::is_retriable) {
                    coordinator.forget().await;
                }
                outcome
            })
            .await
    }

    /// Leaves, so that others need not wait for the session to end. A member with an instance id stays: it is to come
    /// back.
    pub async fn leave(mut self) {
        self.standing = None;
        if self.id.is_empty() || self.options.instance_id.is_some() {
            return;
        }
        if self.joining {
            self.coordinator.forget().await;
        }
        // The goodbye is a courtesy; nothing depends on it.
        let _ = timeout(GOODBYE_TIME, self.say_goodbye()).await;
    }

    async fn say_goodbye(&self) -> Result<(), Error> {
        let connection = self.coordinator.connection().await?;
        let group_id = self.options.group.clone();
        let member_id = self.id.clone();
        let request = if connection.version::<LeaveGroupRequest>(i16::MAX)? >= 3 {
            let leaving = MemberIdentity { member_id, ..MemberIdentity::default() };
            LeaveGroupRequest { group_id, members: vec![leaving], ..LeaveGroupRequest::default() }
        } else {
            LeaveGroupRequest { group_id, member_id, ..LeaveGroupRequest::default() }
        };
        connection.call(&request).await.map(drop)
    }
}

async fn beat(
    coordinator: &Coordinator,
    request: &HeartbeatRequest,
    session: Duration,
    counts: Option<BTreeMap<String, i32>>,
    tell: &watch::Sender<Standing>,
) {
    let pause = (session / 3).min(Duration::from_secs(3));
    let mut looked = Instant::now();
    loop {
        sleep(pause).await;
        let code = match timeout(session, coordinator.call(request)).await {
            Ok(Ok(answer)) => ErrorCode::from_code(answer.error_code),
            Ok(Err(_)) | Err(_) => Some(ErrorCode::NotCoordinator),
        };
        match code {
            Some(ErrorCode::None) => {}
            // Goes on: until it has joined, the group wants to hear that it lives.
            Some(ErrorCode::RebalanceInProgress) => {
                tell.send_replace(Standing::Gathering);
            }
            Some(
                ErrorCode::CoordinatorNotAvailable
                | ErrorCode::CoordinatorLoadInProgress
                | ErrorCode::NotCoordinator,
            ) => coordinator.forget().await,
            // Forgotten, replaced, or not allowed any more: joining tells which.
            _ => {
                tell.send_replace(Standing::Lost);
                return;
            }
        }
        if let Some(counts) = &counts
            && looked.elapsed() >= LOOK_EVERY
        {
            looked = Instant::now();
            let topics = counts.keys().cloned().collect();
            let now = partition_counts(&coordinator.client, &topics).await;
            if now.is_ok_and(|now| now != *counts) {
                tell.send_replace(Standing::Gathering);
            }
        }
    }
}

/// Returns the number of partitions of each topic; 0 for a topic that does not exist.
async fn partition_counts(
    client: &Client,
    topics: &BTreeSet<String>,
) -> Result<BTreeMap<String, i32>, Error> {
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let metadata = client.metadata(Some(&names), false).await?;
    let mut counts: BTreeMap<String, i32> = topics.iter().map(|name| (name.clone(), 0)).collect();
    for topic in metadata.topics {
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        if let Some(name) = topic.name.filter(|_| topic.error_code == 0) {
            counts.insert(name, count);
        }
    }
    Ok(counts)
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
