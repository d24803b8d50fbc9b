//! Two of the nodes of a cluster, over real sockets of this machine.

use std::cell::RefCell;
use std::iter;
use std::net::SocketAddr;
use std::time::Instant;

use duramen_broker::Event;
use duramen_broker::event::Membership;
use duramen_broker::peer::PeerFrame;
use duramen_storage::storage::Facts;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;

use super::notice::Notice;
use super::security::tests::{files, security};
use super::*;
use crate::server::settings::NodeSecurity;
use crate::server::threads::{Common, Input};

const CLUSTER: [u8; 16] = [9; 16];

fn voter(id: u8) -> Voter {
    Voter { peer_id: id.into(), broker_id: id.into(), directory_id: [id; 16] }
}

struct Side {
    runtime: Runtime,
    common: Common,
    inputs: RefCell<UnboundedReceiver<Input>>,
    peers: Peers,
    address: SocketAddr,
}

/// Returns a member of the cluster of nodes 1 and 2, which finds node 2 there.
fn side(other: &HostPort) -> Side {
    side_after(other, |_| {})
}

/// Returns the same, of a node to which something happened before it started.
fn side_after(other: &HostPort, before: impl FnOnce(SocketAddr)) -> Side {
    side_of(other, Security::open(&NodeSecurity::default()).unwrap(), before)
}

fn side_of(other: &HostPort, security: Security, before: impl FnOnce(SocketAddr)) -> Side {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
    let (common, inputs) = Common::new();
    let socket = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = socket.local_addr().unwrap();
    let own = HostPort { host: "127.0.0.1".to_owned(), port: address.port() };
    let place = Place {
        socket,
        address: own.clone(),
        nodes: [(1, own), (2, other.clone())].into(),
        facts: Facts { cluster_id: CLUSTER, broker_id: 1, directory_id: [1; 16] },
        voters: vec![voter(1), voter(2)],
        replaces: false,
        security,
    };
    before(address);
    let peers = Peers::start(place, runtime.handle(), &common);
    Side { runtime, common, inputs: RefCell::new(inputs), peers, address }
}

/// Returns the listener of another node, and its address.
fn listening(runtime: &Runtime) -> (TcpListener, HostPort) {
    let socket = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, HostPort { host: "127.0.0.1".to_owned(), port })
}

fn nowhere() -> HostPort {
    HostPort { host: "127.0.0.1".to_owned(), port: 1 }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(body.len() + 1).unwrap().to_be_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(body);
    bytes
}

fn greeting(of: u8) -> Vec<u8> {
    let from = Identity {
        broker_id: 2,
        directory_id: [of; 16],
        cluster_id: Some(CLUSTER),
        voters: vec![voter(1), voter(2)],
    };
    message(1, &Greeting { to: 1, from, nodes: Vec::new() }.encode())
}

/// Returns the number of inputs that the node's thread gets for these bytes, and tells whether the connection stays
/// open.
fn give(side: &Side, bytes: &[u8]) -> (usize, bool) {
    side.runtime.block_on(async {
        let mut stream = TcpStream::connect(side.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = [0; 1];
        let read = timeout(Duration::from_millis(300), stream.read(&mut answer)).await;
        let mut inputs = side.inputs.borrow_mut();
        let waiting: Vec<Input> = iter::from_fn(|| inputs.try_recv().ok()).collect();
        assert!(waiting.iter().all(|input| matches!(input, Input::Peer(..))));
        (waiting.len(), read.is_err())
    })
}

#[test]
fn frames_of_whoever_has_greeted_reach_the_node_and_nothing_else_does() {
    let side = side(&nowhere());
    let frame = message(2, &PeerFrame::default().encode());
    let mut harmed = frame.clone();
    *harmed.last_mut().unwrap() ^= 1;
    let good = greeting(2);
    let cases: [(&str, Vec<u8>, (usize, bool)); 9] = [
        ("two frames", [&good[..], &frame, &frame].concat(), (2, true)),
        ("half a frame", [&good[..], &frame[..frame.len() - 1]].concat(), (0, true)),
        ("no greeting", frame.clone(), (0, false)),
        (
            "another directory, which the node judges",
            [&greeting(7)[..], &frame].concat(),
            (1, true),
        ),
        ("a harmed frame", [&good[..], &frame, &harmed].concat(), (1, false)),
        ("an unknown kind", [&good[..], &message(9, &[0; 20])].concat(), (0, false)),
        ("a long greeting", (1_u32 << 20).to_be_bytes().to_vec(), (0, false)),
        ("a frame above all bounds", [&good[..], &[0x7f, 0, 0, 0, 2]].concat(), (0, false)),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec(), (0, false)),
    ];
    for (what, bytes, expected) in cases {
        assert_eq!(give(&side, &bytes), expected, "{what}");
    }
}

/// Reads one message.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let mut body = vec![0; usize::try_from(stream.read_u32().await.unwrap()).unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    (body[0], body.split_off(1))
}

#[test]
fn a_node_greets_whoever_it_dials_sends_frames_and_comes_again() {
    let runtime = Runtime::new().unwrap();
    let (other, address) = listening(&runtime);
    let side = side(&address);
    runtime.block_on(async {
        for _ in 0..2 {
            let (mut stream, _) = other.accept().await.unwrap();
            let (kind, body) = read(&mut stream).await;
            assert_eq!(kind, 1);
            let greeted = Greeting::decode(body.into()).unwrap();
            assert_eq!((greeted.to, greeted.from.cluster_id), (2, Some(CLUSTER)));
            // The node takes itself for connected a moment before or after that.
            let mut got = None;
            while got.is_none() {
                side.peers.links.send(2, PeerFrame::default());
                got = timeout(Duration::from_millis(50), read(&mut stream)).await.ok();
            }
            let (kind, body) = got.unwrap();
            assert_eq!((kind, PeerFrame::decode(&body.into())), (2, Ok(PeerFrame::default())));
        }
    });
    let text = side.common.metrics.encode().unwrap();
    assert!(text.contains("duramen_peer_connects_total{peer=\"2\"} 2"), "{text}");
}

#[test]
fn connections_go_on_in_the_runtime_that_they_move_to() {
    let dir = files();
    for mode in ["plain", "tls"] {
        go_on(&|file| security(dir.path(), mode, file, ""));
    }
}

fn go_on(security: &dyn Fn(&str) -> Security) {
    let runtime = Runtime::new().unwrap();
    let (other, address) = listening(&runtime);
    let side = side_of(&address, security("one"), |_| {});
    let theirs = security("two");
    let frame = message(2, &PeerFrame::default().encode());
    let (begun, rest) = frame.split_at(frame.len() - 3);
    let mut inputs = side.inputs.borrow_mut();
    let (mut incoming, mut outgoing) = runtime.block_on(async {
        let mut outgoing = theirs.accept(other.accept().await.unwrap().0).await.unwrap();
        if !outgoing.is_sealed() {
            assert!(matches!(inputs.recv().await, Some(Input::Event(Event::Plain(_)))));
        }
        assert_eq!(read(&mut outgoing).await.0, 1);
        let here = HostPort { host: "127.0.0.1".to_owned(), port: side.address.port() };
        let connect = async |_: &HostPort| Ok(TcpStream::connect(side.address).await?);
        let mut incoming = theirs.dial(&here, connect).await.unwrap();
        incoming.write_all(&[&greeting(2)[..], &frame, begun].concat()).await.unwrap();
        incoming.flush().await.unwrap();
        assert!(matches!(inputs.recv().await, Some(Input::Peer(..))));
        (incoming, outgoing)
    });
    let home = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    side.peers.links.go_to(home.handle());
    runtime.block_on(async {
        incoming.write_all(&[rest, &frame].concat()).await.unwrap();
        incoming.flush().await.unwrap();
        // The rest may come in front of the move, and then nothing does: nothing runs that runtime.
        while timeout(Duration::from_millis(200), inputs.recv()).await.is_ok() {
            incoming.write_all(&frame).await.unwrap();
            incoming.flush().await.unwrap();
        }
    });
    home.block_on(async {
        assert!(matches!(inputs.recv().await, Some(Input::Peer(..))));
        side.peers.links.send(2, PeerFrame::default());
        let mut kinds = vec![read(&mut outgoing).await.0];
        while kinds.last() != Some(&2) {
            kinds.push(read(&mut outgoing).await.0);
        }
        assert!(kinds.len() <= 2, "{kinds:?}: it greets again at most");
    });
    let text = side.common.metrics.encode().unwrap();
    assert!(text.contains("duramen_peer_connects_total{peer=\"2\"} 1"), "{text}");
}

#[test]
fn a_node_that_reads_nothing_holds_nobody_up_and_little_memory() {
    let runtime = Runtime::new().unwrap();
    let (other, address) = listening(&runtime);
    let side = side(&address);
    let _silent = runtime.block_on(other.accept()).unwrap();
    let began = Instant::now();
    (0..100_000).for_each(|_| side.peers.links.send(2, PeerFrame::default()));
    assert!(began.elapsed() < Duration::from_secs(5), "sending never waits");
    let text = side.common.metrics.encode().unwrap();
    let dropped = text
        .lines()
        .find_map(|line| line.strip_prefix("duramen_peer_dropped_frames_total{peer=\"2\"} "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 0, "{text}");
}

#[test]
fn whoever_is_heard_of_is_dialled_and_where_a_registration_says_unless_the_operator_said_it() {
    let runtime = Runtime::new().unwrap();
    let listen = || {
        let socket = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, NodeAddress { broker_id: 3, host: "127.0.0.1".to_owned(), port })
    };
    let ((first, first_at), (second, second_at)) = (listen(), listen());
    let side = side(&nowhere());
    let links = &side.peers.links;
    let accepted = |socket: &TcpListener| {
        let accepted =
            runtime.block_on(async { timeout(Duration::from_secs(10), socket.accept()).await });
        accepted.is_ok()
    };
    links.hear_of(std::slice::from_ref(&first_at));
    assert!(accepted(&first));
    links.hear_of(std::slice::from_ref(&second_at));
    let port_of = |id: i32| links.nodes().into_iter().find(|it| it.broker_id == id).unwrap().port;
    assert_eq!(port_of(3), first_at.port, "what others say does not count for one that is known");
    let long = NodeAddress { broker_id: 9, host: "x".repeat(256), port: 1 };
    links.hear_of(std::slice::from_ref(&long));
    assert!(links.nodes().iter().all(|it| it.broker_id != 9), "no such name is passed on");
    links.place(&[second_at.clone(), NodeAddress { broker_id: 2, ..second_at.clone() }]);
    assert!(accepted(&second));
    assert_eq!((port_of(3), port_of(2)), (second_at.port, nowhere().port));
    assert_eq!(port_of(1), side.address.port(), "others hear of this node");
}

#[test]
fn a_greeting_that_came_before_the_start_does_not_move_a_listed_node() {
    let from = Identity { broker_id: 2, directory_id: [2; 16], cluster_id: None, voters: vec![] };
    let elsewhere = NodeAddress { broker_id: 2, host: "127.0.0.1".to_owned(), port: 2 };
    let greeting = Greeting { to: 1, from, nodes: vec![elsewhere] };
    let mut kept = None;
    let side = side_after(&nowhere(), |address| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let bytes = message(1, &greeting.encode());
        std::io::Write::write_all(&mut stream, &bytes).unwrap();
        kept = Some(stream);
    });
    let mut peers = side.peers;
    let heard = async { timeout(Duration::from_secs(10), peers.greetings.recv()).await };
    assert_eq!(side.runtime.block_on(heard).unwrap(), Some(greeting));
    let nodes = peers.links.nodes();
    assert_eq!(nodes.iter().find(|it| it.broker_id == 2).unwrap().port, nowhere().port);
    drop(kept);
}

#[test]
fn a_directory_without_a_place_is_told_so_and_so_is_the_one_that_has_it() {
    let runtime = Runtime::new().unwrap();
    let (other, address) = listening(&runtime);
    let side = side(&address);
    let directories = [(1, [1; 16]), (2, [2; 16])].into();
    side.peers.links.follow(Membership {
        index: 7,
        directories,
        retired: [[8; 16]].into(),
        is_registered: true,
    });
    runtime.block_on(async {
        let (mut to_holder, _) = other.accept().await.unwrap();
        assert_eq!(read(&mut to_holder).await.0, 1, "it greets");
        for (directory, holder) in [(7, Some([2; 16])), (8, None), (2, None)] {
            let mut stream = TcpStream::connect(side.address).await.unwrap();
            stream.write_all(&greeting(directory)).await.unwrap();
            // Of the one that has its place nothing comes, however long one waits.
            let patience = Duration::from_millis(if directory == 2 { 300 } else { 30_000 });
            let answer = timeout(patience, read(&mut stream)).await.ok();
            let notice = answer.map(|(kind, body)| (kind, Notice::decode(&body.into()).unwrap()));
            let address = stream.local_addr().unwrap().to_string();
            let expected = (directory != 2).then_some(Notice {
                index: 7,
                broker_id: 2,
                holder,
                claimant: [directory; 16],
                address,
                is_holder_here: false,
            });
            assert_eq!(notice, expected.map(|it| (3, it)));
        }
        let (kind, body) = read(&mut to_holder).await;
        let notice = Notice::decode(&body.into()).unwrap();
        assert_eq!((kind, notice.holder, notice.claimant), (3, Some([2; 16]), [7; 16]));

        // The same comes back on a connection that this node opened, and nothing else may.
        let own = Notice { broker_id: 1, claimant: [1; 16], index: 9, ..notice };
        to_holder.write_all(&message(3, &own.encode())).await.unwrap();
        let health = &side.common.health;
        let until = Instant::now() + Duration::from_secs(30);
        while health.stranger().is_none() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(health.stranger().is_some_and(|why| why.contains("--replace")));
        to_holder.write_all(&message(2, &[0])).await.unwrap();
        let (mut again, _) = other.accept().await.unwrap();
        assert_eq!(read(&mut again).await.0, 1);
    });
}
