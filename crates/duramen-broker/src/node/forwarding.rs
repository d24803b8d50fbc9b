//! # Room card: forwarding
//!
//! Purpose:    forward requests of clients that only the leader of the metadata may decide.
//! Owns:       requests on their way to that leader, and forwarded requests of other nodes that this node serves.
//! Interface:  [`Node::forward`], [`Node::on_forwards`], [`Node::answer_forwarded`], [`Node::tick_forwards`].
//! Invariants: forwarding executes a request at most once. The node repeats a request only to the same process, which
//!             knows the request by its number and repeats its answer. Requests on their way and remembered answers are
//!             bounded.
//! Never:      the meaning of requests.
//! Tests:      `node/tests/forwarding.rs`.
//! Start at:   [`Node::forward`].
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

use super::{Node, Parked, Signal};
use crate::controller;
use crate::event::{ConnectionId, RequestKey};
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

fn node_of(connection: ConnectionId) -> Option<i32> {
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

/// See the room card.
#[derive(Debug, Default)]
pub(super) struct Forwards {
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

impl Node {
    /// Sends a request to the node that leads the metadata, which is not this one.
    pub(crate) fn forward(&mut self, key: RequestKey, context: &RequestContext, request: &Request) {
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
        let is_too_much = self.forwards.open.len() >= FORWARDS_MAX
            || self.forwards.open_bytes + bytes.len() > FORWARDS_BYTES_MAX;
        if is_too_much || bytes.is_empty() || node_of(key.0).is_some() {
            let code = ErrorCode::NotController;
            return self.refuse_forward(key, request.clone(), code);
        }
        let nonce = self.chance.next();
        let forward = Forward {
            nonce,
            incarnation: 0,
            principal: context.principal.to_string(),
            listener: context.listener.to_string(),
            client_host: context.client_host.to_string(),
            request: bytes,
        };
        self.forwards.open_bytes += forward.request.len();
        let since = self.peers.ticks();
        self.forwards.open.insert(nonce, Open { key, forward, to: None, since, sent: 0 });
        let deadline_us = self.now.deadline_us(controller::timeout_ms(request));
        self.park(key, Parked::Forwarded { nonce }, deadline_us);
        self.send_forward(nonce);
    }

    fn refuse_forward(&mut self, key: RequestKey, request: Request, code: ErrorCode) {
        let request = Box::new(request);
        self.signals.push_back(Signal::Undecided { key, request, code });
    }

    /// Puts a request into the next frame to the leader of the metadata. Does nothing if no leader is known, or if the
    /// request was sent to another node before.
    fn send_forward(&mut self, nonce: u64) {
        let leader = self.metadata_leader().filter(|id| *id != self.options.facts.broker_id);
        let Some(leader) = leader else { return };
        let Some(incarnation) = self.peers.incarnation_of(leader) else { return };
        let ticks = self.peers.ticks();
        let Some(open) = self.forwards.open.get_mut(&nonce) else { return };
        if open.to.is_none() {
            open.to = Some(leader);
            open.forward.incarnation = incarnation;
        }
        if open.to == Some(leader) && ticks <= open.since + FORWARD_TICKS_MAX {
            open.sent = ticks;
            self.peers.frame_to(leader).forwards.push(open.forward.clone());
        }
    }

    /// Sends unanswered requests again, at a tick of peers.
    pub(crate) fn tick_forwards(&mut self) {
        let ticks = self.peers.ticks();
        let leader = self.metadata_leader();
        let own = self.options.facts.broker_id;
        let is_due = |open: &Open| {
            open.to.is_none() || ticks >= open.sent + FORWARD_AGAIN_TICKS || open.to != leader
        };
        let due = self.forwards.open.iter().filter(|(_, open)| is_due(open));
        let due: Vec<u64> = due.map(|(nonce, _)| *nonce).collect();
        for nonce in due {
            let open = &self.forwards.open[&nonce];
            let is_elsewhere = leader.is_some() && open.to.is_some() && open.to != leader;
            if is_elsewhere {
                self.end_forward(nonce, ErrorCode::NotController);
            } else if open.to.is_none() && leader == Some(own) && self.controller.group.is_serving()
            {
                self.decide_here(nonce);
            } else {
                self.send_forward(nonce);
            }
        }
        let forwards = &mut self.forwards;
        while let Some(oldest) = forwards.answered.front() {
            let Some(Served::Answered { answer, tick }) = forwards.served.get(oldest) else {
                break;
            };
            if ticks < tick + FORWARDED_KEPT_TICKS {
                break;
            }
            forwards.answered_bytes -= answer.response.len();
            forwards.served.remove(oldest);
            forwards.answered.pop_front();
        }
    }

    fn take_forward(&mut self, nonce: u64) -> Option<(RequestKey, Request, RequestContext)> {
        let open = self.forwards.open.remove(&nonce)?;
        self.forwards.open_bytes -= open.forward.request.len();
        let (context, request) = read(&open.forward)?;
        Some((open.key, request, context))
    }

    /// Decides a request here, because this node leads the metadata now and no other node was asked.
    fn decide_here(&mut self, nonce: u64) {
        let Some((key, request, context)) = self.take_forward(nonce) else { return };
        self.unpark(key);
        let request = Box::new(Prepared::Request(request));
        self.signals.push_back(Signal::Judge { key, context, request });
    }

    /// Gives up a request whose outcome is unknown.
    pub(crate) fn end_forward(&mut self, nonce: u64, code: ErrorCode) {
        let Some((key, request, _)) = self.take_forward(nonce) else { return };
        self.unpark(key);
        self.refuse_forward(key, request, code);
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
        api: request.api_key(),
        version: header.api_version,
        spent_us: 0,
    };
    Some((context, request))
}

/// Requests and answers of other nodes.
impl Node {
    /// Takes other nodes' requests for the controller, and their answers to such requests.
    pub(crate) fn on_forwards(&mut self, frame: &Frame) {
        for forward in &frame.forwards {
            self.serve_forward(frame.broker_id, forward);
        }
        for answer in &frame.forwarded {
            self.on_forwarded(answer);
        }
    }

    fn serve_forward(&mut self, from: i32, forward: &Forward) {
        let id = (from, forward.nonce);
        // The request was for the former process of this node. Or the node has no answer or no room for it yet, and it
        // comes again.
        if forward.incarnation != self.options.seed || self.opening.is_some() {
            return;
        }
        match self.forwards.served.get(&id) {
            Some(Served::Open { .. }) => return,
            Some(Served::Answered { answer, .. }) => {
                let answer = answer.clone();
                return self.peers.frame_to(from).forwarded.push(answer);
            }
            None => {}
        }
        // A request that cannot be remembered must not be answered either.
        let is_full = self.forwards.served.len() >= FORWARDED_MAX
            || self.forwards.answered_bytes >= FORWARDS_BYTES_MAX;
        if is_full {
            return;
        }
        let is_leader = self.controller.group.is_serving();
        let read = read(forward).filter(|(_, request)| {
            is_leader && (controller::decides(request) || controller::knows_best(request))
        });
        let Some((context, request)) = read else {
            // Another copy of the request may come when this node leads, and is not to be executed then.
            let refused =
                Forwarded { nonce: forward.nonce, is_refused: true, ..Forwarded::default() };
            return self.remember(id, refused);
        };
        self.forwards.sequence += 1;
        let key = (connection_of(from), self.forwards.sequence);
        self.forwards.served.insert(id, Served::Open { version: context.version });
        self.forwards.asked.insert(key, id);
        let request = Box::new(Prepared::Request(request));
        self.signals.push_back(Signal::Judge { key, context, request });
    }

    /// Takes the answer to a request that another node has forwarded; hands any other back.
    pub(super) fn answer_forwarded(
        &mut self,
        key: RequestKey,
        response: Box<Response>,
    ) -> Option<Box<Response>> {
        if node_of(key.0).is_none() {
            return Some(response);
        }
        let id = self.forwards.asked.remove(&key)?;
        let Some(Served::Open { version }) = self.forwards.served.get(&id) else { return None };
        let bytes = encode_response(0, &response, *version);
        let bytes = bytes.map_or_else(|_| Bytes::new(), |frame| frame.bytes.freeze().slice(4..));
        self.remember(id, Forwarded { nonce: id.1, is_refused: false, response: bytes });
        None
    }

    fn remember(&mut self, id: (i32, u64), answer: Forwarded) {
        self.forwards.answered_bytes += answer.response.len();
        self.forwards.answered.push_back(id);
        self.peers.frame_to(id.0).forwarded.push(answer.clone());
        let tick = self.peers.ticks();
        self.forwards.served.insert(id, Served::Answered { answer, tick });
    }

    /// Lets a request that was not executed go elsewhere, a tick from now and under another number.
    fn renumber(&mut self, nonce: u64) {
        let Some(mut open) = self.forwards.open.remove(&nonce) else { return };
        let other = self.chance.next();
        if let Some(Parked::Forwarded { nonce }) = self.parked_mut(open.key) {
            *nonce = other;
        }
        open.to = None;
        open.forward.nonce = other;
        self.forwards.open.insert(other, open);
    }

    fn on_forwarded(&mut self, answer: &Forwarded) {
        if answer.is_refused {
            return self.renumber(answer.nonce);
        }
        let Some((key, request, context)) = self.take_forward(answer.nonce) else { return };
        self.unpark(key);
        let bytes = answer.response.clone();
        match decode_response(bytes, request.api_key(), context.version) {
            Ok((_, response)) => self.reply(key, response),
            Err(_) => self.refuse_forward(key, request, ErrorCode::UnknownServerError),
        }
    }
}
