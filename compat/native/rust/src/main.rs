//! Carries out the steps that it reads, one a line, with the client that is generated for Rust; see ../README.md.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Value, json};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt;

#[allow(clippy::all)]
mod proto {
    tonic::include_proto!("duramen.v1");
}
use proto::leases_client::LeasesClient;
use proto::logs_client::LogsClient;
use proto::queues_client::QueuesClient;
use proto::topics_client::TopicsClient;

/// A channel, and what its calls say of the user.
type Way = InterceptedService<Channel, User>;

/// The user that the environment names, or nobody.
#[derive(Clone)]
struct User(Option<MetadataValue<Ascii>>);

impl Interceptor for User {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(said) = &self.0 {
            request.metadata_mut().insert("authorization", said.clone());
        }
        Ok(request)
    }
}

/// Connects as nobody without TLS, or as the user that the environment names.
fn connect(address: &str) -> Way {
    let Ok(user) = std::env::var("SASL_USERNAME") else {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        return InterceptedService::new(endpoint.connect_lazy(), User(None));
    };
    let named = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is missing"));
    let said = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{}", named("SASL_PASSWORD"))));
    let authority = std::fs::read(named("SSL_CA")).expect("the authority's certificate");
    let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an address");
    let channel = endpoint.tls_config(trust).expect("settings of TLS").connect_lazy();
    InterceptedService::new(channel, User(Some(said.parse().expect("ASCII"))))
}

const MESSAGE_BYTES_MAX: usize = 33 << 20;

struct Json(DescriptorPool);

impl Json {
    fn kind(&self, name: &str) -> MessageDescriptor {
        let name = format!("duramen.v1.{name}");
        self.0.get_message_by_name(&name).unwrap_or_else(|| panic!("there is no message {name}"))
    }

    fn read<M: Message + Default>(&self, name: &str, json: &Value) -> M {
        let message = DynamicMessage::deserialize(self.kind(name), json).expect("it is the JSON of the message");
        M::decode(message.encode_to_vec().as_slice()).expect("it was encoded here")
    }

    fn write<M: Message>(&self, name: &str, message: &M) -> Value {
        let bytes = message.encode_to_vec();
        let message = DynamicMessage::decode(self.kind(name), bytes.as_slice()).expect("it was encoded here");
        serde_json::to_value(&message).expect("a message has JSON")
    }
}

async fn call(json: &Json, channel: Way, step: &Value, answers: &mut Vec<Value>) -> Result<(), Status> {
    let deadline = Duration::from_secs(step["deadline_s"].as_u64().expect("a number"));
    let mut leases = LeasesClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut logs = LogsClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut queues = QueuesClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut topics = TopicsClient::new(channel.clone());
    macro_rules! one {
        ($client:ident . $method:ident, $request:literal, $answer:literal) => {{
            let mut request = Request::new(json.read($request, &step["request"]));
            request.set_timeout(deadline);
            let answer = $client.$method(request).await?.into_inner();
            answers.push(json.write($answer, &answer));
        }};
    }
    match step["method"].as_str().expect("a name") {
        "Leases.Lease" => one!(leases.lease, "LeaseRequest", "LeaseResponse"),
        "Leases.Settle" => one!(leases.settle, "SettleRequest", "SettleResponse"),
        "Leases.Redrive" => one!(leases.redrive, "RedriveRequest", "RedriveResponse"),
        "Logs.Append" => one!(logs.append, "AppendRequest", "AppendResponse"),
        "Logs.Tail" => one!(logs.tail, "TailRequest", "Tail"),
        "Logs.Truncate" => one!(logs.truncate, "TruncateRequest", "Tail"),
        "Logs.Fence" => one!(logs.fence, "FenceRequest", "Tail"),
        "Logs.OpenSession" => one!(logs.open_session, "OpenSessionRequest", "Session"),
        "Queues.Enqueue" => one!(queues.enqueue, "EnqueueRequest", "EnqueueResponse"),
        "Queues.EnqueueMany" => one!(queues.enqueue_many, "EnqueueManyRequest", "EnqueueManyResponse"),
        "Queues.Retrieve" => one!(queues.retrieve, "RetrieveRequest", "RetrieveResponse"),
        "Queues.GetElement" => one!(queues.get_element, "GetElementRequest", "ReadRecord"),
        "Queues.Delete" => one!(queues.delete, "DeleteRequest", "EditResponse"),
        "Queues.Replace" => one!(queues.replace, "ReplaceRequest", "EditResponse"),
        "Queues.Rewrite" => one!(queues.rewrite, "RewriteRequest", "EditResponse"),
        "Queues.DeleteQueue" => one!(queues.delete_queue, "DeleteQueueRequest", "EditResponse"),
        "Queues.TrimQueue" => one!(queues.trim_queue, "TrimQueueRequest", "EditResponse"),
        "Queues.FenceQueue" => one!(queues.fence_queue, "FenceQueueRequest", "EditResponse"),
        "Queues.GetQueue" => one!(queues.get_queue, "GetQueueRequest", "Queue"),
        "Queues.ListQueues" => one!(queues.list_queues, "ListQueuesRequest", "ListQueuesResponse"),
        "Topics.CreateTopic" => one!(topics.create_topic, "CreateTopicRequest", "Topic"),
        "Topics.GetTopic" => one!(topics.get_topic, "GetTopicRequest", "Topic"),
        "Topics.ListTopics" => one!(topics.list_topics, "ListTopicsRequest", "ListTopicsResponse"),
        "Topics.DeleteTopic" => one!(topics.delete_topic, "DeleteTopicRequest", "DeleteTopicResponse"),
        "Queues.EnqueueStream" => {
            let requests = step["request"]["requests"].as_array().expect("a list");
            let requests: Vec<proto::EnqueueStreamRequest> = requests.iter().map(|it| json.read("EnqueueStreamRequest", it)).collect();
            let mut request = Request::new(tonic::codegen::tokio_stream::iter(requests));
            request.set_timeout(deadline);
            let mut stream = queues.enqueue_stream(request).await?.into_inner();
            while let Some(answer) = stream.message().await? {
                answers.push(json.write("EnqueueStreamResponse", &answer));
            }
        }
        "Queues.Subscribe" => {
            let mut request = Request::new(json.read("SubscribeRequest", &step["request"]));
            request.set_timeout(deadline);
            let mut events = queues.subscribe(request).await?.into_inner();
            while let Some(event) = events.message().await? {
                let event = json.write("SubscribeResponse", &event);
                if event.get("heartbeat").is_some() {
                    continue;
                }
                answers.push(event);
                if step["take"] == answers.len() {
                    break;
                }
            }
        }
        "Logs.Read" => {
            let mut request = Request::new(json.read("ReadRequest", &step["request"]));
            request.set_timeout(deadline);
            let mut pages = logs.read(request).await?.into_inner();
            while let Some(page) = pages.message().await? {
                answers.push(json.write("ReadResponse", &page));
            }
        }
        _ => missing(channel).await?,
    }
    Ok(())
}

/// Calls a method that there is not.
async fn missing(channel: Way) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = "/duramen.v1.Nothing/Do".parse().expect("it is a path");
    client.unary(Request::new(()), path, codec).await.map(|_| ())
}

fn problem(status: &Status) -> Value {
    let info = status.get_details_error_info().filter(|info| info.domain == "duramen");
    let (slug, metadata) = info.map(|info| (info.reason, info.metadata)).unwrap_or_default();
    json!({ "slug": slug, "code": status.code() as i32, "detail": status.message(), "metadata": metadata })
}

#[tokio::main]
async fn main() {
    let descriptors = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
    let json = Json(DescriptorPool::decode(descriptors.as_slice()).expect("they were written by the build"));
    let mut channels: HashMap<String, Way> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let step: Value = serde_json::from_str(&line.expect("lines are text")).expect("lines are JSON");
        let address = step["address"].as_str().expect("a text");
        let channel = channels.entry(address.to_owned()).or_insert_with(|| connect(address)).clone();
        let mut answers = Vec::new();
        let ended = call(&json, channel, &step, &mut answers).await;
        let mut told = json!({ "answers": answers });
        if let Err(status) = ended {
            told["problem"] = problem(&status);
        }
        println!("{told}");
        std::io::stdout().flush().expect("the reader is there");
    }
}
