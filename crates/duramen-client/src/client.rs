//! The cluster as one client sees it: brokers, connections, topics, leaders and coordinators.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::find_coordinator::Coordinator as FoundCoordinator;
use duramen_protocol::messages::metadata::{
    MetadataRequestTopic, MetadataResponsePartition, MetadataResponseTopic,
};
use duramen_protocol::messages::{FindCoordinatorRequest, MetadataRequest, MetadataResponse};
use duramen_protocol::wire::Uuid;
use tokio::sync::Mutex;

use crate::backoff::Backoff;
use crate::call::Call;
use crate::connection::{Connection, Wire, enter};
use crate::error::Error;
use crate::node_id::NodeId;
use crate::options::Options;

/// Longest time that a topic may be unknown while a broker creates it by itself. A broker that creates none answers
/// the same.
const CREATION_TIME: Duration = Duration::from_secs(5);

/// Cluster as seen by one client. Clones share connections and metadata.
///
/// Methods that ask a broker fail with [`Error`]: `Refused` for an error code, other variants for connections and
/// bytes. They repeat a request while a retry may help ([`Error::is_retriable`]), for at most [`Options::retry_for`].
/// [`any`](Self::any) and [`node`](Self::node) try once.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Addresses of the brokers; empty until the first Metadata answer.
    addresses: BTreeMap<NodeId, String>,
    /// Open connections by address: a bootstrap address that is also advertised is used once.
    connections: BTreeMap<String, Arc<Connection>>,
    /// Second connections by address, for requests whose answers never wait for the commit.
    express: BTreeMap<String, Arc<Connection>>,
    topics: BTreeMap<String, MetadataResponseTopic>,
}

impl State {
    fn learn(&mut self, node: NodeId, host: &str, port: i32) {
        // An IPv6 address has colons of its own.
        let is_ipv6 = host.contains(':');
        let address = if is_ipv6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        self.addresses.insert(node, address);
    }
}

/// Kind of key, as `FindCoordinator` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    Group = 0,
    Transaction = 1,
}

/// Leader of a partition, as of the last Metadata answer.
#[derive(Clone)]
pub struct Leader {
    /// The leader's broker id.
    pub node: NodeId,
    /// The leader epoch, or -1 where the broker does not tell.
    pub epoch: i32,
    /// The topic's id; zero with brokers that have none.
    pub topic_id: Uuid,
    /// An open connection to the leader.
    pub connection: Arc<Connection>,
}

impl Client {
    /// Connects to the first bootstrap address that answers, and learns the versions it speaks. Tries again for at most
    /// [`Options::connect_for`], and then returns the last error.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let mut backoff = Backoff::new(options.connect_for);
        let client = Self { shared: Arc::new(Shared { options, state: Mutex::default() }) };
        loop {
            match client.any().await {
                Ok(_) => return Ok(client),
                Err(error) if !backoff.pause().await => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Returns the options that the client was made with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Returns an open connection to any broker: a known one, else the first address that answers. Fails with the error
    /// of the last address, or with [`Error::NoAddress`].
    pub async fn any(&self) -> Result<Arc<Connection>, Error> {
        let mut state = self.shared.state.lock().await;
        state.connections.retain(|_, connection| connection.is_open());
        if let Some(connection) = state.connections.values().next() {
            return Ok(connection.clone());
        }
        let options = &self.shared.options;
        let known = state.addresses.values().cloned().collect::<Vec<_>>();
        let mut failure = Error::NoAddress;
        for address in options.bootstrap.iter().chain(&known) {
            match Connection::open(address, options).await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    state.connections.insert(address.clone(), connection.clone());
                    return Ok(connection);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Asks any broker, again after a lost connection. An error code in the response is no error here.
    pub async fn call_any<C: Call>(&self, request: &C) -> Result<C::Response, Error> {
        self.retry(async || self.any().await?.call(request).await).await
    }

    /// Returns an open connection to the broker that decides on topics and settings. Fails with `NOT_CONTROLLER` while
    /// the cluster has none.
    pub async fn controller(&self) -> Result<Arc<Connection>, Error> {
        let id = self.metadata(Some(&[]), false).await?.controller_id;
        if id < 0 {
            let nobody = ErrorCode::NotController.code();
            return Err(Error::refused("the cluster's controller", nobody, None));
        }
        self.node(id).await
    }

    /// Repeats `attempt` while it fails in a way that may pass, for at most [`Options::retry_for`]. Returns the outcome
    /// of the last attempt.
    pub async fn retry<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut backoff = Backoff::new(self.shared.options.retry_for);
        loop {
            match attempt().await {
                Err(error) if error.is_retriable() && backoff.pause().await => {}
                outcome => return outcome,
            }
        }
    }

    /// Returns the brokers, and `topics`, or all topics for `None`. The response has an error code for a topic that
    /// does not exist. With `create` a broker may create it.
    pub async fn metadata(
        &self,
        topics: Option<&[&str]>,
        create: bool,
    ) -> Result<MetadataResponse, Error> {
        let named = |name: &&str| MetadataRequestTopic {
            name: Some((*name).to_owned()),
            ..MetadataRequestTopic::default()
        };
        let request = MetadataRequest {
            topics: topics.map(|names| names.iter().map(named).collect()),
            allow_auto_topic_creation: create,
            ..MetadataRequest::default()
        };
        let response = self.call_any(&request).await?;
        let mut state = self.shared.state.lock().await;
        for broker in &response.brokers {
            state.learn(broker.node_id, &broker.host, broker.port);
        }
        for topic in &response.topics {
            let Some(name) = topic.name.clone() else { continue };
            if topic.error_code == 0 {
                state.topics.insert(name, topic.clone());
            } else {
                state.topics.remove(&name);
            }
        }
        Ok(response)
    }

    /// Returns a topic that exists, from the cache or the cluster; waits while it is being created. With `create` a
    /// broker may create a missing topic, for which the call waits 5 seconds at most.
    ///
    /// Fails with `UNKNOWN_TOPIC_OR_PARTITION` for a missing topic.
    pub async fn topic(&self, name: &str, create: bool) -> Result<MetadataResponseTopic, Error> {
        if let Some(topic) = self.shared.state.lock().await.topics.get(name) {
            return Ok(topic.clone());
        }
        let patience = self.shared.options.retry_for;
        let mut backoff = Backoff::new(if create { patience.min(CREATION_TIME) } else { patience });
        loop {
            let response = self.metadata(Some(&[name]), create).await?;
            let topic =
                response.topics.into_iter().find(|topic| topic.name.as_deref() == Some(name));
            let code = topic
                .as_ref()
                .map_or(ErrorCode::UnknownTopicOrPartition.code(), |topic| topic.error_code);
            // While an auto-created topic takes shape, brokers answer "unknown" for a moment.
            let settled = code != ErrorCode::LeaderNotAvailable.code()
                && !(create && code == ErrorCode::UnknownTopicOrPartition.code());
            match topic {
                Some(topic) if code == 0 => return Ok(topic),
                _ if settled || !backoff.pause().await => {
                    return Err(Error::refused(format!("topic {name}"), code, None));
                }
                _ => {}
            }
        }
    }

    /// Drops the metadata of a topic, after an answer that contradicts it.
    pub async fn forget(&self, topic: &str) {
        self.shared.state.lock().await.topics.remove(topic);
    }

    /// Returns the leader of a partition, with an open connection to it.
    ///
    /// Fails with `UNKNOWN_TOPIC_OR_PARTITION` for a missing partition, and with `LEADER_NOT_AVAILABLE` while the
    /// partition has no leader.
    pub async fn leader(&self, topic: &str, partition: i32) -> Result<Leader, Error> {
        let found = self.topic(topic, false).await?;
        let what = || format!("partition {partition} of topic {topic}");
        let entry: &MetadataResponsePartition =
            found.partitions.iter().find(|entry| entry.partition_index == partition).ok_or_else(
                || Error::refused(what(), ErrorCode::UnknownTopicOrPartition.code(), None),
            )?;
        if entry.leader_id < 0 {
            self.forget(topic).await;
            return Err(Error::refused(what(), ErrorCode::LeaderNotAvailable.code(), None));
        }
        let connection = self.node(entry.leader_id).await;
        if connection.is_err() {
            self.forget(topic).await;
        }
        Ok(Leader {
            node: entry.leader_id,
            epoch: entry.leader_epoch,
            topic_id: found.topic_id,
            connection: connection?,
        })
    }

    /// Returns an open connection to a broker. Fails with [`Error::UnknownNode`] for an id that no response has named.
    pub async fn node(&self, node: NodeId) -> Result<Arc<Connection>, Error> {
        let mut state = self.shared.state.lock().await;
        let address = state.addresses.get(&node).cloned().ok_or(Error::UnknownNode { node })?;
        if let Some(connection) = state.connections.get(&address)
            && connection.is_open()
        {
            return Ok(connection.clone());
        }
        let connection = Arc::new(Connection::open(&address, &self.shared.options).await?);
        state.connections.insert(address, connection.clone());
        Ok(connection)
    }

    /// Connects to `HOST:PORT` with this client's options, for frames that the caller makes itself. Fails as
    /// [`Connection::open`] does.
    pub async fn enter(&self, address: &str) -> Result<Wire, Error> {
        enter(address, &self.shared.options).await
    }

    /// Returns the second connection to a broker, for requests whose answers never wait for the commit.
    pub(crate) async fn express(&self, node: NodeId) -> Result<Arc<Connection>, Error> {
        let address = self.address(node).await?;
        if let Some(connection) = self.shared.state.lock().await.express.get(&address)
            && connection.is_open()
        {
            return Ok(connection.clone());
        }
        // Without the lock: a member that does not answer holds up nobody else.
        let connection = Connection::open(&address, &self.shared.options).await?;
        Ok(self.keep_express(Arc::new(connection)).await)
    }

    /// Keeps an open connection as the second one to its broker, unless there is one. Returns the one that is kept.
    pub(crate) async fn keep_express(&self, connection: Arc<Connection>) -> Arc<Connection> {
        let mut state = self.shared.state.lock().await;
        let address = connection.address().to_owned();
        let kept = state.express.entry(address).or_insert_with(|| connection.clone());
        if !kept.is_open() {
            *kept = connection;
        }
        kept.clone()
    }

    /// Returns the address of a broker as `HOST:PORT`, as the cluster advertises it. Fails with [`Error::UnknownNode`]
    /// for an id that no response has named.
    pub async fn address(&self, node: NodeId) -> Result<String, Error> {
        let state = self.shared.state.lock().await;
        state.addresses.get(&node).cloned().ok_or(Error::UnknownNode { node })
    }

    /// Returns the broker that coordinates a group, with an open connection to it.
    pub async fn coordinator(&self, group: &str) -> Result<(NodeId, Arc<Connection>), Error> {
        let node = self.find_coordinator(KeyType::Group, group).await?;
        Ok((node, self.node(node).await?))
    }

    pub(crate) async fn find_coordinator(&self, of: KeyType, key: &str) -> Result<NodeId, Error> {
        let connection = self.any().await?;
        let request = if connection.version::<FindCoordinatorRequest>(i16::MAX)? >= 4 {
            FindCoordinatorRequest { coordinator_keys: vec![key.into()], ..Default::default() }
        } else {
            FindCoordinatorRequest { key: key.into(), ..Default::default() }
        };
        let request = FindCoordinatorRequest { key_type: of as i8, ..request };
        let response = connection.call(&request).await?;
        let found = response.coordinators.into_iter().next().unwrap_or(FoundCoordinator {
            key: key.into(),
            node_id: response.node_id,
            host: response.host,
            port: response.port,
            error_code: response.error_code,
            error_message: response.error_message,
        });
        let what = || match of {
            KeyType::Group => format!("coordinator of group {key}"),
            KeyType::Transaction => format!("coordinator of transactional id {key}"),
        };
        Error::check(what, found.error_code, found.error_message.as_deref())?;
        self.learn([(found.node_id, found.host.as_str(), found.port)]).await;
        Ok(found.node_id)
    }

    /// Asks the coordinator of a group or of a transactional id, again if it moved.
    pub(crate) async fn with_coordinator<T>(
        &self,
        of: KeyType,
        key: &str,
        mut ask: impl AsyncFnMut(NodeId, &Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.retry(async || {
            let node = self.find_coordinator(of, key).await?;
            ask(node, &*self.node(node).await?).await
        })
        .await
    }

    /// Takes the addresses of brokers from an answer: id, host and port of each.
    pub(crate) async fn learn<'a>(
        &self,
        brokers: impl IntoIterator<Item = (NodeId, &'a str, i32)>,
    ) {
        let mut state = self.shared.state.lock().await;
        for (node, host, port) in brokers {
            state.learn(node, host, port);
        }
    }
}
