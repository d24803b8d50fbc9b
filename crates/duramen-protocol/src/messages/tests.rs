//! Every declared message in every version: round trips, hostile bytes, and agreement with an independent codec.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as oracle;
use kafka_protocol::protocol::{Decodable, Encodable, Message as OracleMessage};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::wire::entropy::{Entropy, Sample};
use crate::wire::{Decoder, Encoder, Message};

const CASES: u32 = 64;

/// Checks all values of a strategy. The check is a trait object so that proptest is compiled once a strategy, and not
/// once a message. That was most of the time this crate's tests took to build.
fn for_all<S: Strategy>(
    strategy: &S,
    what: (&str, i16),
    check: &dyn Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let (name, version) = what;
    TestRunner::new(config)
        .run(strategy, check)
        .unwrap_or_else(|e| panic!("{name} v{version}: {e}"));
}

fn entropy() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..512)
}

fn sample<M: Message + Sample>(seed: &[u8], version: i16) -> M {
    M::sample(&mut Entropy::new(seed), M::ctx(version))
}

fn encode<M: Message>(message: &M, version: i16) -> Bytes {
    let mut e = Encoder::new();
    message.encode(&mut e, version).expect("the sample fits its version");
    e.into_bytes().freeze()
}

fn decode<M: Message>(bytes: Bytes, version: i16) -> M {
    let mut d = Decoder::new(bytes);
    let message = M::decode(&mut d, version).expect("what was encoded decodes");
    d.finish().expect("all of it was read");
    message
}

fn round_trips<M: Message + Sample>() {
    for version in M::VERSIONS.first..=M::VERSIONS.last {
        let check = |seed: Vec<u8>| {
            let message: M = sample(&seed, version);
            prop_assert_eq!(&decode::<M>(encode(&message, version), version), &message);
            Ok(())
        };
        for_all(&entropy(), (M::NAME, version), &check);
    }
}

/// A message's seed, and what becomes of its bytes: which is changed, by what, and whether they end there.
type Hostile = (Vec<u8>, prop::sample::Index, u8, bool);

/// Checks that every prefix and many mutations decode or fail, and never panic.
fn survives_hostile_bytes<M: Message + Sample>() {
    let hostile = (entropy(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>());
    for version in M::VERSIONS.first..=M::VERSIONS.last {
        let check = |(seed, place, byte, truncate): Hostile| {
            let mut bytes = BytesMut::from(&encode(&sample::<M>(&seed, version), version)[..]);
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] ^= byte;
                if truncate {
                    bytes.truncate(place);
                }
            }
            let decoded = M::decode(&mut Decoder::new(bytes.freeze()), version);
            if let Ok(message) = decoded {
                // Whatever was understood can be said again.
                message.encode(&mut Encoder::new(), version).expect("a decoded message encodes");
            }
            let _: Result<M, _> = M::decode(&mut Decoder::new(Bytes::from(seed)), version);
            Ok(())
        };
        for_all(&hostile, (M::NAME, version), &check);
    }
}

/// Checks that our bytes mean the same to the oracle, and the oracle's bytes mean the same to us.
fn agrees_with_oracle<M: Message + Sample, O: OracleMessage + Decodable + Encodable>() {
    let first = M::VERSIONS.first.max(O::VERSIONS.min);
    let last = M::VERSIONS.last.min(O::VERSIONS.max);
    assert!(first <= last, "{} has no version in common with the oracle", M::NAME);
    for version in first..=last {
        let check = |seed: Vec<u8>| {
            let message: M = sample(&seed, version);
            let ours = encode(&message, version);
            let mut left = ours.clone();
            let understood = O::decode(&mut left, version)
                .map_err(|e| TestCaseError::fail(format!("oracle cannot read {message:?}: {e}")))?;
            prop_assert!(left.is_empty(), "the oracle left {} bytes of {message:?}", left.len());
            let mut theirs = BytesMut::new();
            understood
                .encode(&mut theirs, version)
                .map_err(|e| TestCaseError::fail(format!("oracle cannot write: {e}")))?;
            prop_assert_eq!(&ours[..], &theirs[..]);
            prop_assert_eq!(decode::<M>(theirs.freeze(), version), message);
            Ok(())
        };
        for_all(&entropy(), (M::NAME, version), &check);
    }
}

macro_rules! generate {
    ($($module:ident $api:ident($request:ident, $response:ident))*) => {
        #[test]
        fn every_message_survives_a_round_trip_in_every_version() {
            $(round_trips::<super::$request>(); round_trips::<super::$response>();)*
        }

        #[test]
        fn no_bytes_make_decoding_panic() {
            $(
                survives_hostile_bytes::<super::$request>();
                survives_hostile_bytes::<super::$response>();
            )*
        }

        #[test]
        fn an_independent_codec_writes_and_reads_the_same_bytes() {
            $(agrees!($api $request $response);)*
        }
    };
}

/// Our own APIs have no oracle.
macro_rules! agrees {
    (AppendFast $request:ident $response:ident) => {};
    (BeginBackup $request:ident $response:ident) => {};
    (DescribeFast $request:ident $response:ident) => {};
    (DescribeReplicas $request:ident $response:ident) => {};
    ($api:ident $request:ident $response:ident) => {
        agrees_with_oracle::<super::$request, oracle::$request>();
        agrees_with_oracle::<super::$response, oracle::$response>();
    };
}

for_each_api!(generate);

#[test]
fn what_consumers_tell_each_other_is_read_and_written_as_others_do() {
    use super::consumer_protocol::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
    round_trips::<ConsumerProtocolSubscription>();
    round_trips::<ConsumerProtocolAssignment>();
    survives_hostile_bytes::<ConsumerProtocolSubscription>();
    survives_hostile_bytes::<ConsumerProtocolAssignment>();
    agrees_with_oracle::<ConsumerProtocolSubscription, oracle::ConsumerProtocolSubscription>();
    agrees_with_oracle::<ConsumerProtocolAssignment, oracle::ConsumerProtocolAssignment>();
}

#[test]
fn the_oracle_knows_nearly_every_version() {
    // If the oracle fell behind, the comparison above would quietly shrink.
    let mut missing = Vec::new();
    macro_rules! compare {
        (AppendFast $request:ident) => {};
        (BeginBackup $request:ident) => {};
        (DescribeFast $request:ident) => {};
        (DescribeReplicas $request:ident) => {};
        ($api:ident $request:ident) => {
            let (ours, theirs) = (super::$request::VERSIONS, oracle::$request::VERSIONS);
            if ours.first < theirs.min || ours.last > theirs.max {
                missing.push((stringify!($api), ours, theirs.min, theirs.max));
            }
        };
    }
    macro_rules! count {
        ($($module:ident $api:ident($request:ident, $response:ident))*) => {
            $(compare!($api $request);)*
        };
    }
    for_each_api!(count);
    assert!(missing.len() <= 11, "{missing:#?}");
}
