//! # Room card: forwarding
//!
//! Purpose:    forward requests of clients that only the leader of the metadata may decide.
//! Owns:       requests on their way to that leader, and forwarded requests of other nodes that this node serves.
//! Interface:  [`Forwards::forward`], [`Forwards::on_forwards`], [`Forwards::reply`], [`Forwards::tick_forwards`].
//! Invariants: forwarding executes a request at most once. The node repeats a request only to the same process, which
//!             knows the request by its number and repeats its answer. Requests on their way and remembered answers are
//!             bounded.
//! Never:      the meaning of requests.
//! Tests:      `node/tests/forwarding.rs`.
//! Start at:   [`Forwards::forward`].
//!
//! A frame may be lost, and come twice. So the node repeats a request until it gets the answer, the time is over, or
//! another node leads the metadata. Without an answer the outcome is unknown, and the client gets `NOT_CONTROLLER`. A
//! process that will not execute a request reports that, and then the request goes to another node.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use duramen_protocol::{
    ErrorCode, Request, RequestHeader, Response, decode_request, decode_response, encode_request,
    encode_response,
};

use crate::access::Api;
use crate::controller;
use crate::core::{Core, Parked, Signal};
use crate::event::{Action, ConnectionId, Reply, RequestKey};
use crate::limits::{
    FORWARD_AGAIN_TICKS, FORWARD_TICKS_MAX, FORWARDED_KEPT_TICKS, FORWARDED_MAX,
    FORWARDS_BYTES_MAX, FORWARDS_MAX,
};
use crate::peer::{Forward, Forwarded, Frame};
use crate::session::{Prepared, RequestContext};

/// Requests of other nodes have connections that no listener numbers: this, and the node's id.
const OF_NODES: u64 = 1 << 63;

fn connection_of(broker_id: i32) -> ConnectionId {
    ConnectionId(OF_NODES | u64::from(broker_id.unsigned_abs()))
}

/// Returns the node that stands for its clients with this connection, if one does.
pub(crate) fn node_of(connection: ConnectionId) -> Option<i32> {
    let id = connection.0.checked_sub(OF_NODES)?;
    i32::try_from(id).ok()
}

/// A request on its way.
#[derive(Debug)]
struct Open {
    key: RequestKey,
    /// The request as it travels.
    forward: Forward,
    /// The node that it was sent to.
    to: Option<i32>,
    /// The tick at which it came, and the one at which it was sent last.
    since: u64,
    sent: u64,
}

/// A request of another node.
#[derive(Debug)]
enum Served {
    /// A request that is being executed.
    Open { version: i16 },
    /// A request that was executed.
    Answered { answer: Forwarded, tick: u64 },
}

impl Served {
    fn bytes(&self) -> usize {
        match self {
            Self::Open { .. } => 0,
            Self::Answered { answer, .. } => answer.response.len(),
        }
    }
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    open: BTreeMap<u64, Open>,
    open_bytes: usize,
    /// By node and number, and the number's request here.
    served: BTreeMap<(i32, u64), Served>,
    asked: BTreeMap<RequestKey, (i32, u64)>,
    /// Numbers of answered requests, oldest first.
    answered: VecDeque<(i32, u64)>,
    answered_bytes: usize,
    sequence: u64,
}

impl Forwards {
    /// Forgets the requests of a client that is gone, because nobody waits for the answers. The requests that were sent
    /// are executed all the same.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        let bytes = &mut self.open_bytes;
        self.open.retain(|_, open| {
            let stays = open.key.0 != connection;
            *bytes -= if stays { 0 } else { open.forward.request.len() };
            stays
        });
    }
}

impl Forwards {
    /// Sends a request to the node that leads the metadata, which is not this one.
    pub(crate) fn forward(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        context: &RequestContext,
        request: &Request,
    ) {
        let header = RequestHeader {
            api_key: request.api_key().code(),
            api_version: context.version,
            correlation_id: 0,
            client_id: context.client_id.clone(),
        };
        let bytes = match encode_request(&header, request) {
            Ok(frame) => frame.bytes.freeze().slice(4..),
            Err(_) => Bytes::new(),
        };
        let is_too_much =
            self.open.len() >= FORWARDS_MAX || self.open_bytes + bytes.len() > FORWARDS_BYTES_MAX;
        if is_too_much || bytes.is_empty() || node_of(key.0).is_some() {
            let code = ErrorCode::NotController;
            return core.refuse_forward(key, request.clone(), code);
        }
        let nonce = core.chance.next();
        let forward = Forward {
            nonce,
            incarnation: 0,
            principal: context.principal.to_string(),
            listener: context.listener.to_string(),
            client_host: context.client_host.to_string(),
            is_ruled: core.access.is_on(),
            request: bytes,
        };
        self.open_bytes += forward.request.len();
        let since = core.peers.ticks();
        self.open.insert(nonce, Open { key, forward, to: None, since, sent: 0 });
        let deadline_us = core.now.deadline_us(controller::timeout_ms(request));
        core.park(key, Parked::Forwarded { nonce }, deadline_us);
        self.send_forward(core, nonce);
    }

    /// Puts a request into the next frame to the leader of the metadata. Does nothing if no leader is known, or if the
    /// request was sent to another node before.
    fn send_forward(&mut self, core: &mut Core, nonce: u64) {
        let leader = core.metadata_leader().filter(|id| *id != core.options.facts.broker_id);
        let Some(leader) = leader else { return };
        let Some(incarnation) = core.peers.incarnation_of(leader) else { return };
        let ticks = core.peers.ticks();
        let Some(open) = self.open.get_mut(&nonce) else { return };
        if open.to.is_none() {
            open.to = Some(leader);
            open.forward.incarnation = incarnation;
        }
        if open.to == Some(leader) && ticks <= open.since + FORWARD_TICKS_MAX {
            open.sent = ticks;
            core.peers.frame_to(leader).forwards.push(open.forward.clone());
        }
    }

    /// Sends unanswered requests again, at a tick of peers.
    pub(crate) fn tick_forwards(&mut self, core: &mut Core) {
        let ticks = core.peers.ticks();
        let leader = core.metadata_leader();
        let own = core.options.facts.broker_id;
        let is_due = |open: &Open| {
            open.to.is_none() || ticks >= open.sent + FORWARD_AGAIN_TICKS || open.to != leader
        };
        let due = self.open.iter().filter(|(_, open)| is_due(open));
        let due: Vec<u64> = due.map(|(nonce, _)| *nonce).collect();
        for nonce in due {
            let open = &self.open[&nonce];
            let is_elsewhere = leader.is_some() && open.to.is_some() && open.to != leader;
            if is_elsewhere {
                self.end_forward(core, nonce, ErrorCode::NotController);
            } else if open.to.is_none() && leader == Some(own) && core.controller.group.is_serving()
            {
                self.decide_here(core, nonce);
            } else {
                self.send_forward(core, nonce);
            }
        }
        while let Some(oldest) = self.answered.front() {
            let Some(Served::Answered { answer, tick }) = self.served.get(oldest) else {
                break;
            };
            if ticks < tick + FORWARDED_KEPT_TICKS {
                break;
            }
            self.answered_bytes -= answer.response.len();
            self.served.remove(oldest);
            self.answered.pop_front();
        }
    }

    fn take_forward(&mut self, nonce: u64) -> Option<(RequestKey, Request, RequestContext)> {
        let open = self.open.remove(&nonce)?;
        self.open_bytes -= open.forward.request.len();
        let (context, request) = read(&open.forward)?;
        Some((open.key, request, context))
    }

    /// Decides a request here, because this node leads the metadata now and no other node was asked.
    fn decide_here(&mut self, core: &mut Core, nonce: u64) {
        let Some((key, request, context)) = self.take_forward(nonce) else { return };
        core.take_parked(key);
        let request = Box::new(Prepared::Request(request));
        core.signals.push_back(Signal::Judge { key, context, request });
    }

    /// Gives up a request whose outcome is unknown.
    pub(crate) fn end_forward(&mut self, core: &mut Core, nonce: u64, code: ErrorCode) {
        let Some((key, request, _)) = self.take_forward(nonce) else { return };
        core.take_parked(key);
        core.refuse_forward(key, request, code);
    }
}

impl Core {
    fn refuse_forward(&mut self, key: RequestKey, request: Request, code: ErrorCode) {
        let request = Box::new(request);
        self.signals.push_back(Signal::Undecided { key, request, code });
    }
}

/// Reads the request that travels, and its client.
fn read(forward: &Forward) -> Option<(RequestContext, Request)> {
    let (header, request) = decode_request(forward.request.clone()).ok()?;
    let context = RequestContext {
        principal: forward.principal.as_str().into(),
        client_id: header.client_id,
        listener: forward.listener.as_str().into(),
        client_host: forward.client_host.as_str().into(),
        api: Api::Kafka(request.api_key()),
        version: header.api_version,
        spent_us: 0,
        is_ruled: forward.is_ruled,
    };
    Some((context, request))
}

/// Requests and answers of other nodes.
impl Forwards {
    /// Takes other nodes' requests for the controller, and their answers to such requests.
    pub(crate) fn on_forwards(&mut self, core: &mut Core, frame: &Frame) {
        for forward in &frame.forwards {
            self.serve_forward(core, frame.broker_id, forward);
        }
        for answer in &frame.forwarded {
            self.on_forwarded(core, answer);
        }
    }

    fn serve_forward(&mut self, core: &mut Core, from: i32, forward: &Forward) {
        let id = (from, forward.nonce);
        // The request was for the former process of this node. Or the node has no answer or no room for it yet, and it
        // comes again.
        if forward.incarnation != core.options.seed || core.is_opening() {
            return;
        }
        match self.served.get(&id) {
            Some(Served::Open { .. }) => return,
            Some(Served::Answered { answer, .. }) => {
                let answer = answer.clone();
                return core.peers.frame_to(from).forwarded.push(answer);
            }
            None => {}
        }
        // A request that cannot be remembered must not be answered either.
        let is_full =
            self.served.len() >= FORWARDED_MAX || self.answered_bytes >= FORWARDS_BYTES_MAX;
        if is_full {
            return;
        }
        let is_leader = core.controller.group.is_serving();
        let read = read(forward).filter(|(_, request)| {
            is_leader && (controller::decides(request) || controller::knows_best(request))
        });
        let Some((context, request)) = read else {
            // Another copy of the request may come when this node leads, and is not to be executed then.
            let refused =
                Forwarded { nonce: forward.nonce, is_refused: true, ..Forwarded::default() };
            return self.remember(core, id, refused);
        };
        self.sequence += 1;
        let key = (connection_of(from), self.sequence);
        self.served.insert(id, Served::Open { version: context.version });
        self.asked.insert(key, id);
        let request = Box::new(Prepared::Request(request));
        core.signals.push_back(Signal::Judge { key, context, request });
    }

    /// Takes the answer to a request that another node has forwarded; hands any other back.
    pub(super) fn answer_forwarded(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        response: Box<Response>,
    ) -> Option<Box<Response>> {
        if node_of(key.0).is_none() {
            return Some(response);
        }
        let id = self.asked.remove(&key)?;
        let Some(Served::Open { version }) = self.served.get(&id) else { return None };
        let bytes = encode_response(0, &response, *version);
        let bytes = bytes.map_or_else(|_| Bytes::new(), |frame| frame.bytes.freeze().slice(4..));
        self.remember(core, id, Forwarded { nonce: id.1, is_refused: false, response: bytes });
        None
    }

    fn remember(&mut self, core: &mut Core, id: (i32, u64), answer: Forwarded) {
        self.answered_bytes += answer.response.len();
        self.answered.push_back(id);
        core.peers.frame_to(id.0).forwarded.push(answer.clone());
        let tick = core.peers.ticks();
        self.served.insert(id, Served::Answered { answer, tick });
    }

    /// Lets a request that was not executed go elsewhere, a tick from now and under another number.
    fn renumber(&mut self, core: &mut Core, nonce: u64) {
        let Some(mut open) = self.open.remove(&nonce) else { return };
        let other = core.chance.next();
        if let Some(Parked::Forwarded { nonce }) = core.parked_mut(open.key) {
            *nonce = other;
        }
        open.to = None;
        open.forward.nonce = other;
        self.open.insert(other, open);
    }

    fn on_forwarded(&mut self, core: &mut Core, answer: &Forwarded) {
        if answer.is_refused {
            return self.renumber(core, answer.nonce);
        }
        let Some((key, request, context)) = self.take_forward(answer.nonce) else { return };
        core.take_parked(key);
        let bytes = answer.response.clone();
        match decode_response(bytes, request.api_key(), context.version) {
            Ok((_, response)) => self.reply(core, key, response),
            Err(_) => core.refuse_forward(key, request, ErrorCode::UnknownServerError),
        }
    }
}

/// Invariants.
impl Forwards {
    /// Checks the sums, and that each request on its way waits at the desk.
    pub(crate) fn inspect(&self, core: &Core) {
        assert!(self.open.len() <= FORWARDS_MAX, "requests on their way are bounded");
        assert!(self.open_bytes <= FORWARDS_BYTES_MAX, "their bytes are bounded");
        debug_assert_eq!(
            self.open_bytes,
            self.open.values().map(|open| open.forward.request.len()).sum::<usize>(),
            "bytes on their way are those of the requests"
        );
        debug_assert!(
            self.open.iter().all(|(nonce, open)| {
                open.forward.nonce == *nonce
                    && matches!(core.parked(open.key), Some(Parked::Forwarded { nonce: it }) if it == nonce)
            }),
            "a request on its way waits for its answer"
        );
        assert_eq!(
            self.asked.len() + self.answered.len(),
            self.served.len(),
            "another node's request is executed or answered"
        );
        debug_assert_eq!(
            self.answered_bytes,
            self.served.values().map(Served::bytes).sum::<usize>(),
            "bytes that are remembered are those of the answers"
        );
    }
}

/// Answers.
impl Forwards {
    pub(crate) fn reply(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        response: impl Into<Response>,
    ) {
        self.reply_boxed(core, key, Box::new(response.into()));
    }

    pub(crate) fn reply_boxed(&mut self, core: &mut Core, key: RequestKey, reply: Box<Response>) {
        self.reply_with(core, key, Reply::Response(reply));
    }

    pub(crate) fn reply_with(&mut self, core: &mut Core, key: RequestKey, mut reply: Reply) {
        core.counters.replies += 1;
        if let Reply::Response(response) = reply {
            // Another node may have asked on behalf of its client.
            let Some(response) = self.answer_forwarded(core, key, response) else { return };
            reply = Reply::Response(response);
        }
        reply.rest(core.time_rest_ms(key));
        core.end_time(key);
        core.out.push(Action::Reply { connection: key.0, sequence: key.1, reply });
    }
}
