//! Users: who they are, how they change, and whose connections end for it.

use std::num::NonZeroU32;

use bytes::Bytes;
use duramen_protocol::messages::alter_user_scram_credentials::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use duramen_protocol::messages::describe_user_scram_credentials::CredentialInfo;
use duramen_protocol::messages::{
    AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest,
};
use duramen_protocol::sasl::scram::{Credential, Hash, ITERATIONS_MAX, ITERATIONS_MIN};
use duramen_protocol::wire::Secret;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::{Done, ReplicaId};

use super::harness::{Harness, NATIVE, Store, WALL_MS, options, settings};
use super::trio::{TICK_MS, Trio};
use crate::event::{ConnectionId, Event, Now};
use crate::login::{Known, WhoIs};
use crate::native::{Log, Op, Target, WantTail};
use crate::node::NodeOptions;

const ONE: ConnectionId = ConnectionId(501);
const OTHER: ConnectionId = ConnectionId(502);

fn salted(hash: Hash, password: &[u8]) -> Vec<u8> {
    hash.salted_password(password, b"salt", NonZeroU32::new(ITERATIONS_MIN).unwrap())
}

fn upsertion(user: &str, hash: Hash, password: &[u8]) -> ScramCredentialUpsertion {
    ScramCredentialUpsertion {
        name: user.to_owned(),
        mechanism: hash.code(),
        iterations: ITERATIONS_MIN.cast_signed(),
        salt: Bytes::from_static(b"salt"),
        salted_password: Secret(salted(hash, password).into()),
    }
}

fn deletion(user: &str, mechanism: i8) -> ScramCredentialDeletion {
    ScramCredentialDeletion { name: user.to_owned(), mechanism }
}

/// User and code of each result.
fn told(response: Response) -> Vec<(String, i16)> {
    let Response::AlterUserScramCredentials(response) = response else { panic!("{response:?}") };
    response.results.into_iter().map(|it| (it.user, it.error_code)).collect()
}

fn alter(
    it: &mut Harness,
    deletions: Vec<ScramCredentialDeletion>,
    upsertions: Vec<ScramCredentialUpsertion>,
) -> Vec<(String, i16)> {
    told(it.ask(AlterUserScramCredentialsRequest { deletions, upsertions }, 0))
}

fn users(it: &mut Harness) -> Vec<(String, Vec<(i8, i32)>)> {
    match it.ask(DescribeUserScramCredentialsRequest::default(), 0) {
        Response::DescribeUserScramCredentials(response) => {
            let info = |it: CredentialInfo| (it.mechanism, it.iterations);
            let infos = |infos: Vec<_>| infos.into_iter().map(info).collect();
            response.results.into_iter().map(|it| (it.user, infos(it.credential_infos))).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Asks for the credential of a user, as a connection does.
fn who_is(it: &mut Harness, connection: ConnectionId, user: &str) -> Option<Credential> {
    let asked = WhoIs { user: user.to_owned(), wanted: &Hash::ALL };
    it.step(Event::WhoIs { connection, asked });
    it.credentials.remove(&connection).map(|it| (*it).clone())
}

/// Lets a connection come in as a user.
fn come_in(it: &mut Harness, connection: ConnectionId, user: &str, password: &[u8]) -> Known {
    let credential = who_is(it, connection, user).expect("the node answers");
    assert!(credential.fits(password));
    let known = Known { user: user.to_owned(), credential: credential.into() };
    it.step(Event::Known { connection, known: known.clone() });
    known
}

#[test]
fn users_are_made_described_and_removed() {
    let mut it = Harness::new(&[]);
    let (long, short) = (Hash::Sha512, Hash::Sha256);
    let made = vec![
        upsertion("ada", long, b"x"),
        upsertion("ada", short, b"x"),
        upsertion("b", long, b"y"),
    ];
    let ok = |users: &[&str]| users.iter().map(|it| ((*it).to_owned(), 0)).collect::<Vec<_>>();
    assert_eq!(alter(&mut it, vec![], made), ok(&["ada", "b"]));
    let few = ITERATIONS_MIN.cast_signed();
    let ada = ("ada".to_owned(), vec![(1, few), (2, few)]);
    assert_eq!(users(&mut it), [ada.clone(), ("b".to_owned(), vec![(2, few)])]);
    assert_eq!(alter(&mut it, vec![deletion("b", 2)], vec![]), ok(&["b"]));
    assert_eq!(users(&mut it), std::slice::from_ref(&ada));
    it.restart(&[], 2);
    assert_eq!(users(&mut it), std::slice::from_ref(&ada), "the metadata keeps them");
    // So does its image.
    it.storage(Done::WantImage { replica: ReplicaId(1) });
    it.run();
    it.restart(&[], 3);
    assert_eq!(users(&mut it), [ada]);
    let credential = who_is(&mut it, ONE, "ada").unwrap();
    assert!(credential.fits(b"x") && credential.hash == long);
}

#[test]
fn mistakes_about_users_have_kafkas_codes_and_change_nothing() {
    let mut it = Harness::new(&[]);
    let hash = Hash::Sha256;
    let good = || upsertion("ada", hash, b"x");
    let unacceptable = ErrorCode::UnacceptableCredential;
    let row = |wrong: ScramCredentialUpsertion| (vec![], vec![wrong]);
    for ((deletions, upsertions), code) in [
        (row(ScramCredentialUpsertion { name: String::new(), ..good() }), unacceptable),
        (row(ScramCredentialUpsertion { name: "n".repeat(256), ..good() }), unacceptable),
        (row(ScramCredentialUpsertion { iterations: 4095, ..good() }), unacceptable),
        (row(ScramCredentialUpsertion { iterations: -1, ..good() }), unacceptable),
        (
            row(ScramCredentialUpsertion {
                iterations: ITERATIONS_MAX.cast_signed() + 1,
                ..good()
            }),
            unacceptable,
        ),
        (row(ScramCredentialUpsertion { salt: Bytes::new(), ..good() }), unacceptable),
        (
            row(ScramCredentialUpsertion { salted_password: Secret(Bytes::new()), ..good() }),
            unacceptable,
        ),
        (
            row(ScramCredentialUpsertion { mechanism: 0, ..good() }),
            ErrorCode::UnsupportedSaslMechanism,
        ),
        ((vec![deletion("ada", 3)], vec![]), ErrorCode::UnsupportedSaslMechanism),
        ((vec![deletion("ada", 1)], vec![]), ErrorCode::ResourceNotFound),
        ((vec![], vec![good(), good()]), ErrorCode::DuplicateResource),
    ] {
        let results = alter(&mut it, deletions, upsertions);
        assert_eq!(results.iter().map(|it| it.1).collect::<Vec<_>>(), [code.code()]);
    }
    // A mistake about one user leaves the others alone.
    let both =
        vec![upsertion("b", hash, b"y"), ScramCredentialUpsertion { iterations: 1, ..good() }];
    let results = alter(&mut it, vec![], both);
    assert_eq!(results, [("ada".to_owned(), unacceptable.code()), ("b".to_owned(), 0)]);
    assert_eq!(users(&mut it).len(), 1);
}

#[test]
fn nobody_can_tell_a_user_from_somebody_who_is_none() {
    let mut it = Harness::new(&[]);
    alter(&mut it, vec![], vec![upsertion("ada", Hash::Sha512, b"x")]);
    let eve = who_is(&mut it, ONE, "eve").unwrap();
    assert_eq!(eve, who_is(&mut it, OTHER, "eve").unwrap(), "the salt is the same each time");
    assert_ne!(eve.salt, who_is(&mut it, ONE, "mallory").unwrap().salt);
    assert!(!eve.fits(b"x") && !eve.fits(b""));
    it.restart(&[], 2);
    assert_eq!(eve, who_is(&mut it, ONE, "eve").unwrap(), "also after a restart");
}

#[test]
fn connections_of_a_user_end_when_its_password_changes_or_it_is_removed() {
    let mut it = Harness::new(&[]);
    let (long, short) = (Hash::Sha512, Hash::Sha256);
    alter(&mut it, vec![], vec![upsertion("ada", long, b"x"), upsertion("b", long, b"y")]);
    come_in(&mut it, ONE, "ada", b"x");
    come_in(&mut it, OTHER, "b", b"y");
    alter(&mut it, vec![], vec![upsertion("ada", short, b"x")]);
    assert_eq!(it.closed_on(ONE), None, "another mechanism's password is no change of this one");
    alter(&mut it, vec![], vec![upsertion("ada", long, b"z")]);
    assert!(it.closed_on(ONE).unwrap().contains("the user ada"));
    assert_eq!(it.closed_on(OTHER), None);
    it.step(Event::Disconnected(ONE));
    let known = come_in(&mut it, ONE, "ada", b"z");
    let asked = who_is(&mut it, OTHER, "ada").unwrap();
    alter(&mut it, vec![deletion("ada", 2), deletion("ada", 1), deletion("b", 2)], vec![]);
    assert!(it.closed_on(ONE).is_some() && it.closed_on(OTHER).is_some());
    // The proof of a password that was removed meanwhile comes too late.
    assert_eq!(*known.credential, asked);
    it.step(Event::Disconnected(OTHER));
    it.step(Event::Known { connection: OTHER, known });
    assert!(it.closed_on(OTHER).unwrap().contains("was removed"));
    it.step(Event::Disconnected(ONE));
}

#[test]
fn requests_of_a_removed_user_are_not_carried_out() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    alter(&mut it, vec![], vec![upsertion("ada", Hash::Sha512, b"x")]);
    let known = come_in(&mut it, NATIVE, "ada", b"x");
    let ends = || {
        let target = Target::Log(Log { topic: "t".to_owned(), partition: 0 });
        Op::Tail(WantTail { target, is_certain: true })
    };
    let asked = it.operate(ends());
    it.run();
    assert!(it.answer(asked).is_some_and(|it| it.is_ok()));
    alter(&mut it, vec![deletion("ada", 2)], vec![]);
    assert!(it.closed_on(NATIVE).is_some());
    // Its connection is still to end, and a call that begins with its proof comes too late.
    for is_new in [false, true] {
        if is_new {
            it.step(Event::Disconnected(NATIVE));
            it.step(Event::Known { connection: NATIVE, known: known.clone() });
        }
        let asked = it.operate(ends());
        it.run();
        assert!(it.answer(asked).is_none());
    }
    it.step(Event::Disconnected(NATIVE));
    let asked = it.operate(ends());
    it.run();
    assert!(it.answer(asked).is_some(), "the next client of the same number is served");
}

#[test]
fn sasl_after_the_login_is_out_of_order() {
    let mut it = Harness::new(&[]);
    let request = SaslHandshakeRequest { mechanism: "PLAIN".to_owned() };
    let Response::SaslHandshake(response) = it.ask(request, 1) else { panic!() };
    assert_eq!(response.error_code, ErrorCode::IllegalSaslState.code());
    let request = SaslAuthenticateRequest::default();
    let Response::SaslAuthenticate(response) = it.ask(request, 2) else { panic!() };
    assert_eq!(response.error_code, ErrorCode::IllegalSaslState.code());
}

#[test]
fn a_new_cluster_gets_its_first_users_and_no_other_does() {
    let first = |password: &[u8]| {
        let hash = Hash::Sha512;
        let few = NonZeroU32::new(ITERATIONS_MIN).unwrap();
        let salt = Bytes::from_static(b"salt");
        vec![("root".to_owned(), Credential::of_password(hash, password, salt, few))]
    };
    let start = |store: Store, password: &[u8], seed| {
        let options = options(settings(&[]), seed, store.metadata_tail());
        let options = NodeOptions { first_users: first(password), ..options };
        let mut it = Harness::opened(store, options, Now { mono_us: 0, wall_ms: WALL_MS });
        // A question comes before the node is open, and waits.
        let asked = WhoIs { user: "root".to_owned(), wanted: &Hash::ALL };
        it.step(Event::WhoIs { connection: ONE, asked });
        assert!(it.credentials.is_empty());
        it.is_prompt = true;
        it.run();
        it
    };
    let mut it = start(Store::default(), b"x", 1);
    assert!(it.credentials.contains_key(&ONE), "the question has its answer");
    assert!(who_is(&mut it, ONE, "root").unwrap().fits(b"x"));
    let mut it = start(std::mem::take(&mut it.store), b"other", 2);
    assert!(who_is(&mut it, ONE, "root").unwrap().fits(b"x"), "there was a user already");
}

#[test]
fn a_change_at_one_node_ends_connections_at_all() {
    let mut trio = Trio::new(&[]);
    let leader = trio.controller();
    let other = (leader + 1) % 3;
    let request =
        |deletions, upsertions| AlterUserScramCredentialsRequest { deletions, upsertions };
    let made = request(vec![], vec![upsertion("ada", Hash::Sha512, b"x")]);
    assert_eq!(told(trio.ask(other, made, 0)), [("ada".to_owned(), 0)]);
    come_in(&mut trio.nodes[leader], ONE, "ada", b"x");
    come_in(&mut trio.nodes[other], OTHER, "ada", b"x");
    let gone = request(vec![deletion("ada", 2)], vec![]);
    assert_eq!(told(trio.ask(other, gone, 0)), [("ada".to_owned(), 0)]);
    trio.pass_ms(1000);
    assert!(trio.nodes[leader].closed_on(ONE).is_some());
    assert!(trio.nodes[other].closed_on(OTHER).is_some());
}

#[test]
fn a_node_that_may_have_missed_a_change_lets_nobody_in() {
    let mut trio = Trio::new(&[]);
    let other = (trio.controller() + 1) % 3;
    assert!(who_is(&mut trio.nodes[other], ONE, "ada").is_some());
    trio.cut.insert(other);
    trio.pass_ms(8_000);
    assert!(who_is(&mut trio.nodes[other], ONE, "ada").is_some(), "it may be a short silence");
    trio.pass_ms(1_500);
    assert_eq!(who_is(&mut trio.nodes[other], ONE, "ada"), None);
    assert!(trio.nodes[other].closed_on(ONE).unwrap().contains("has not heard"));
    trio.cut.clear();
    for _ in 0..100 {
        trio.pass_ms(TICK_MS);
    }
    assert!(who_is(&mut trio.nodes[other], ONE, "ada").is_some());
}

#[test]
fn users_wait_until_all_nodes_know_of_them() {
    let mut trio = Trio::new(&[]);
    let leader = trio.controller();
    let image = &mut trio.nodes[leader].node.core.controller.image;
    image.brokers.values_mut().last().expect("three").kinds = 16;
    let upsertions = vec![upsertion("ada", Hash::Sha512, b"x")];
    let request = AlterUserScramCredentialsRequest { deletions: vec![], upsertions };
    let results = told(trio.ask(leader, request, 0));
    assert_eq!(results, [("ada".to_owned(), ErrorCode::UnsupportedVersion.code())]);
}
