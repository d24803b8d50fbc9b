//! The operations that edit queues, in the messages of the protocol: here, or once at the node that leads the queue's
//! log.

use duramen_broker::native::{Answer, Op, Problem};
use tonic::Request;
use tonic::transport::Channel;

use super::calls::Origin;
use super::enqueuing::now_ms;
use super::forwarding::Answered;
use super::messages::{
    content, delete_of, delete_queue_of, edited, fence_queue_of, replace_of, rewrite_of,
    trim_queue_of, unhurried,
};
use super::problems::Fault;
use super::queues::Queues;
use crate::proto::queues_client::QueuesClient;
use crate::proto::{
    DeleteQueueRequest, DeleteRequest, EditResponse, FenceQueueRequest, ReplaceRequest,
    RewriteRequest, TrimQueueRequest,
};

impl Queues {
    /// Carries an edit out.
    fn edit<M>(
        &self,
        origin: &Origin,
        op: Result<Op, Problem>,
        message: M,
        pass: impl AsyncFnOnce(QueuesClient<Channel>, Request<M>) -> Answered<EditResponse>,
    ) -> impl Future<Output = Result<EditResponse, Fault>> {
        let finish = async |_, answer: Answer| Ok(edited(&answer));
        self.carry(origin, op, message, pass, finish)
    }

    pub(crate) async fn delete(
        &self,
        origin: &Origin,
        request: DeleteRequest,
    ) -> Result<EditResponse, Fault> {
        let op = delete_of(&request);
        let pass = async |mut node: QueuesClient<Channel>, it| node.delete(it).await;
        self.edit(origin, op, request, pass).await
    }

    pub(crate) async fn replace(
        &self,
        origin: &Origin,
        request: ReplaceRequest,
    ) -> Result<EditResponse, Fault> {
        let op = unhurried(content(request.message.iter()), || replace_of(&request, now_ms()));
        let pass = async |mut node: QueuesClient<Channel>, it| node.replace(it).await;
        self.edit(origin, op, request, pass).await
    }

    pub(crate) async fn rewrite(
        &self,
        origin: &Origin,
        request: RewriteRequest,
    ) -> Result<EditResponse, Fault> {
        let op = unhurried(content(request.messages.iter()), || rewrite_of(&request, now_ms()));
        let pass = async |mut node: QueuesClient<Channel>, it| node.rewrite(it).await;
        self.edit(origin, op, request, pass).await
    }

    pub(crate) async fn delete_queue(
        &self,
        origin: &Origin,
        request: DeleteQueueRequest,
    ) -> Result<EditResponse, Fault> {
        let op = delete_queue_of(&request);
        let pass = async |mut node: QueuesClient<Channel>, it| node.delete_queue(it).await;
        self.edit(origin, op, request, pass).await
    }

    pub(crate) async fn trim_queue(
        &self,
        origin: &Origin,
        request: TrimQueueRequest,
    ) -> Result<EditResponse, Fault> {
        let op = trim_queue_of(&request);
        let pass = async |mut node: QueuesClient<Channel>, it| node.trim_queue(it).await;
        self.edit(origin, op, request, pass).await
    }

    pub(crate) async fn fence_queue(
        &self,
        origin: &Origin,
        request: FenceQueueRequest,
    ) -> Result<EditResponse, Fault> {
        let op = fence_queue_of(&request);
        let pass = async |mut node: QueuesClient<Channel>, it| node.fence_queue(it).await;
        self.edit(origin, op, request, pass).await
    }
}
