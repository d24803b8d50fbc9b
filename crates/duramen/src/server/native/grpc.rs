//! The native API as gRPC: each method is one operation.

use std::sync::Arc;

use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::calls::Origin;
use super::charging::Account;
use super::forwarding::MESSAGE_BYTES_MAX;
use super::identify;
use super::leases::Leases;
use super::logs::Logs;
use super::queues::Queues;
use super::topics::Topics;
use crate::proto::leases_server::{self, LeasesServer};
use crate::proto::logs_server::{self, LogsServer};
use crate::proto::queues_server::{self, QueuesServer};
use crate::proto::topics_server::{self, TopicsServer};
use crate::proto::{
    AppendRequest, AppendResponse, CreateTopicRequest, DeleteQueueRequest, DeleteRequest,
    DeleteTopicRequest, DeleteTopicResponse, EditResponse, EnqueueManyRequest, EnqueueManyResponse,
    EnqueueRequest, EnqueueResponse, EnqueueStreamRequest, EnqueueStreamResponse,
    FenceQueueRequest, FenceRequest, GetElementRequest, GetQueueRequest, GetTopicRequest,
    LeaseRequest, LeaseResponse, ListQueuesRequest, ListQueuesResponse, ListTopicsRequest,
    ListTopicsResponse, OpenSessionRequest, Queue, ReadRecord, ReadRequest, ReadResponse,
    RedriveRequest, RedriveResponse, ReplaceRequest, RetrieveRequest, RetrieveResponse,
    RewriteRequest, Session, SettleRequest, SettleResponse, SubscribeRequest, SubscribeResponse,
    Tail, TailRequest, Topic, TrimQueueRequest, TruncateRequest,
};

fn origin_of<T>(request: &Request<T>) -> Origin {
    identify::origin_of(request.extensions(), request.metadata().as_ref())
}

#[derive(Clone, Debug)]
struct OfLogs(Logs);

#[tonic::async_trait]
impl logs_server::Logs for OfLogs {
    type ReadStream = BoxStream<'static, Result<ReadResponse, Status>>;

    async fn append(
        &self,
        request: Request<AppendRequest>,
    ) -> Result<Response<AppendResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.append(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let origin = origin_of(&request);
        let pages = self.0.read(&origin, request.into_inner()).await?;
        Ok(Response::new(pages.map_err(Status::from).boxed()))
    }

    async fn tail(&self, request: Request<TailRequest>) -> Result<Response<Tail>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.tail(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn truncate(&self, request: Request<TruncateRequest>) -> Result<Response<Tail>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.truncate(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn fence(&self, request: Request<FenceRequest>) -> Result<Response<Tail>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.fence(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<Session>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.open_session(&origin, request.into_inner()).await.map(Response::new)?)
    }
}

#[derive(Clone, Debug)]
struct OfQueues(Queues);

#[tonic::async_trait]
impl queues_server::Queues for OfQueues {
    type EnqueueStreamStream = BoxStream<'static, Result<EnqueueStreamResponse, Status>>;
    type SubscribeStream = BoxStream<'static, Result<SubscribeResponse, Status>>;

    async fn enqueue(
        &self,
        request: Request<EnqueueRequest>,
    ) -> Result<Response<EnqueueResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.enqueue(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn enqueue_many(
        &self,
        request: Request<EnqueueManyRequest>,
    ) -> Result<Response<EnqueueManyResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.enqueue_many(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn enqueue_stream(
        &self,
        request: Request<Streaming<EnqueueStreamRequest>>,
    ) -> Result<Response<Self::EnqueueStreamStream>, Status> {
        let origin = origin_of(&request);
        let account = request.extensions().get::<Arc<Account>>().cloned();
        let account = account.expect("the listener gives each connection an account");
        Ok(Response::new(self.0.enqueue_stream(origin, account, request.into_inner())))
    }

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let origin = origin_of(&request);
        let events = self.0.subscribe(&origin, request.into_inner()).await?;
        Ok(Response::new(events.map_err(Status::from).boxed()))
    }

    async fn retrieve(
        &self,
        request: Request<RetrieveRequest>,
    ) -> Result<Response<RetrieveResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.retrieve(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn get_element(
        &self,
        request: Request<GetElementRequest>,
    ) -> Result<Response<ReadRecord>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.get_element(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<EditResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.delete(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn replace(
        &self,
        request: Request<ReplaceRequest>,
    ) -> Result<Response<EditResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.replace(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn rewrite(
        &self,
        request: Request<RewriteRequest>,
    ) -> Result<Response<EditResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.rewrite(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn delete_queue(
        &self,
        request: Request<DeleteQueueRequest>,
    ) -> Result<Response<EditResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.delete_queue(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn trim_queue(
        &self,
        request: Request<TrimQueueRequest>,
    ) -> Result<Response<EditResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.trim_queue(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn fence_queue(
        &self,
        request: Request<FenceQueueRequest>,
    ) -> Result<Response<EditResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.fence_queue(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn get_queue(
        &self,
        request: Request<GetQueueRequest>,
    ) -> Result<Response<Queue>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.get_queue(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn list_queues(
        &self,
        request: Request<ListQueuesRequest>,
    ) -> Result<Response<ListQueuesResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.list(&origin, request.into_inner()).await.map(Response::new)?)
    }
}

#[derive(Clone, Debug)]
struct OfLeases(Leases);

#[tonic::async_trait]
impl leases_server::Leases for OfLeases {
    async fn lease(
        &self,
        request: Request<LeaseRequest>,
    ) -> Result<Response<LeaseResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.lease(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn settle(
        &self,
        request: Request<SettleRequest>,
    ) -> Result<Response<SettleResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.settle(&origin, request.into_inner()).await.map(Response::new)?)
    }

    async fn redrive(
        &self,
        request: Request<RedriveRequest>,
    ) -> Result<Response<RedriveResponse>, Status> {
        let origin = origin_of(&request);
        Ok(self.0.redrive(&origin, request.into_inner()).await.map(Response::new)?)
    }
}

#[derive(Clone, Debug)]
struct OfTopics(Topics);

#[tonic::async_trait]
impl topics_server::Topics for OfTopics {
    async fn create_topic(
        &self,
        request: Request<CreateTopicRequest>,
    ) -> Result<Response<Topic>, Status> {
        let caller = origin_of(&request).caller;
        Ok(self.0.create(&caller, request.into_inner()).await.map(Response::new)?)
    }

    async fn get_topic(
        &self,
        request: Request<GetTopicRequest>,
    ) -> Result<Response<Topic>, Status> {
        let caller = origin_of(&request).caller;
        Ok(self.0.get(&caller, request.into_inner()).await.map(Response::new)?)
    }

    async fn list_topics(
        &self,
        request: Request<ListTopicsRequest>,
    ) -> Result<Response<ListTopicsResponse>, Status> {
        let caller = origin_of(&request).caller;
        Ok(self.0.list(&caller, request.into_inner()).await.map(Response::new)?)
    }

    async fn delete_topic(
        &self,
        request: Request<DeleteTopicRequest>,
    ) -> Result<Response<DeleteTopicResponse>, Status> {
        let caller = origin_of(&request).caller;
        Ok(self.0.delete(&caller, request.into_inner()).await.map(Response::new)?)
    }
}

/// Returns all gRPC services, with reflection and health.
pub(crate) fn routes(
    logs: Logs,
    queues: Queues,
    leases: Leases,
    topics: Topics,
) -> anyhow::Result<axum::Router> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let logs = LogsServer::new(OfLogs(logs))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let queues = QueuesServer::new(OfQueues(queues))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let leases = LeasesServer::new(OfLeases(leases))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let (_, health) = tonic_health::server::health_reporter();
    let routes = Routes::new(logs)
        .add_service(queues)
        .add_service(leases)
        .add_service(TopicsServer::new(OfTopics(topics)))
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    // Of two routers that are merged one may have a fallback.
    Ok(routes.into_axum_router().reset_fallback())
}
