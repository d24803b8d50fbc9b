//! Requests and answers in JSON. Unknown fields in a request are refused: a misspelt guard must not be an unguarded
//! append.

mod leases;
mod logs;
mod queues;
mod records;
mod topics;

pub(crate) use leases::{Lease, Leases, Redrive, Redriven, Settle, Settled};
pub(crate) use logs::{Append, Fence, Page, Tail, Truncate};
pub(crate) use queues::{
    Delete, Edited, ElementPage, Enqueue, EnqueueMany, Enqueued, NewMessage, QueueEvent,
    QueueExtent, Queues, Rewrite, Subscribe, TrimQueue,
};
pub(crate) use records::{Appended, As, Guard, OpenSession, Record, Session, position, record};
pub(crate) use topics::{CreateTopic, Topic, Topics};
