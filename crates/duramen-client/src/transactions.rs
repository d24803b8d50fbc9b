//! Transactions as an administrator sees them: the transactional ids, the open transactions, and their ends.

use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::describe_producers::TopicRequest;
use duramen_protocol::messages::describe_transactions::TransactionState;
use duramen_protocol::messages::list_transactions;
use duramen_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, InitProducerIdRequest,
    ListTransactionsRequest,
};

use crate::appender::Producer;
use crate::client::{Client, KeyType};
use crate::error::Error;
use crate::node_id::NodeId;

/// The first version of `ListTransactions` that knows the age of a transaction, and the first that knows patterns.
const FIRST_WITH_AGE: i16 = 1;
const FIRST_WITH_PATTERN: i16 = 2;

/// Which transactional ids are listed: all, unless it says more.
#[derive(Debug, Clone, Default)]
pub struct TransactionFilter {
    /// States of the transactional ids, as Kafka writes them.
    pub states: Vec<String>,
    /// Producer ids of the transactional ids.
    pub producer_ids: Vec<i64>,
    /// Least age of the id's open transaction, in milliseconds.
    pub open_for_ms: Option<i64>,
    /// Regular expression that the transactional id matches.
    pub pattern: Option<String>,
}

impl Client {
    /// Returns the transactional ids of all brokers, each with the broker that coordinates it.
    ///
    /// Fails with `UNSUPPORTED_VERSION` if a broker does not know a filter.
    pub async fn list_transactions(
        &self,
        filter: &TransactionFilter,
    ) -> Result<Vec<(NodeId, list_transactions::TransactionState)>, Error> {
        let request = ListTransactionsRequest {
            state_filters: filter.states.clone(),
            producer_id_filters: filter.producer_ids.clone(),
            duration_filter: filter.open_for_ms.unwrap_or(-1),
            transactional_id_pattern: filter.pattern.clone(),
        };
        let needed = match filter {
            TransactionFilter { pattern: Some(_), .. } => FIRST_WITH_PATTERN,
            TransactionFilter { open_for_ms: Some(_), .. } => FIRST_WITH_AGE,
            _ => 0,
        };
        let brokers = self.metadata(Some(&[]), false).await?.brokers;
        let mut listed = Vec::new();
        for node in brokers.into_iter().map(|broker| broker.node_id) {
            let answered = self.retry(async || {
                let connection = self.node(node).await?;
                let what = || format!("transactions of broker {node}");
                if connection.version::<ListTransactionsRequest>(i16::MAX)? < needed {
                    // An older broker would pass over the filter.
                    let code = ErrorCode::UnsupportedVersion.code();
                    return Err(Error::refused(what(), code, None));
                }
                let response = connection.call(&request).await?;
                Error::check(what, response.error_code, None)?;
                Ok(response.transaction_states)
            });
            listed.extend(answered.await?.into_iter().map(|it| (node, it)));
        }
        Ok(listed)
    }

    /// Returns the state of a transactional id, as its coordinator knows it; `None` if the coordinator does not know
    /// the id.
    pub async fn describe_transaction(
        &self,
        id: &str,
    ) -> Result<Option<(NodeId, TransactionState)>, Error> {
        let request = DescribeTransactionsRequest { transactional_ids: vec![id.to_owned()] };
        self.with_coordinator(KeyType::Transaction, id, async |node, connection| {
            let response = connection.call(&request).await?;
            let found = Error::first(response.transaction_states, || what(id))?;
            if found.error_code == ErrorCode::TransactionalIdNotFound.code() {
                return Ok(None);
            }
            Error::check(|| what(id), found.error_code, None)?;
            Ok(Some((node, found)))
        })
        .await
    }

    /// Takes a transactional id over, as a new producer with it does. The coordinator aborts the open transaction, and
    /// fences the former producer of the id. `timeout_ms` limits later transactions, in milliseconds.
    ///
    /// Fails with `INVALID_TRANSACTION_TIMEOUT` above the broker's limit.
    pub async fn take_over(&self, id: &str, timeout_ms: i32) -> Result<Producer, Error> {
        let request = InitProducerIdRequest {
            transactional_id: Some(id.to_owned()),
            transaction_timeout_ms: timeout_ms,
            ..InitProducerIdRequest::default()
        };
        self.with_coordinator(KeyType::Transaction, id, async |_, connection| {
            let response = connection.call(&request).await?;
            Error::check(|| what(id), response.error_code, None)?;
            Ok(Producer { id: response.producer_id, epoch: response.producer_epoch })
        })
        .await
    }

    /// Returns the offset at which a producer's open transaction begins in a partition. `None` means that nothing of it
    /// is there.
    pub async fn open_since(
        &self,
        topic: &str,
        partition: i32,
        producer_id: i64,
    ) -> Result<Option<i64>, Error> {
        let asked = TopicRequest { name: topic.to_owned(), partition_indexes: vec![partition] };
        let request = DescribeProducersRequest { topics: vec![asked] };
        self.retry(async || {
            let leader = self.leader(topic, partition).await?;
            let response = leader.connection.call(&request).await?;
            let what = || format!("partition {partition} of topic {topic}");
            let rows = response.topics.into_iter().flat_map(|it| it.partitions);
            let found = Error::first(rows, what)?;
            let checked = Error::check(what, found.error_code, found.error_message.as_deref());
            if checked.is_err() {
                self.forget(topic).await;
            }
            checked?;
            let mut producers = found.active_producers.into_iter();
            let open = producers.find(|it| it.producer_id == producer_id);
            Ok(open.map(|it| it.current_txn_start_offset).filter(|offset| *offset >= 0))
        })
        .await
    }
}

fn what(id: &str) -> String {
    format!("transactional id {id}")
}
