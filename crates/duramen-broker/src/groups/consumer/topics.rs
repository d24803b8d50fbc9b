//! # Room card: topics of groups
//!
//! Purpose:    the topics as a group of the consumer protocol sees them: which exist, their sizes, and which of them
//!             match a regular expression.
//! Owns:       [`Topics`]; Kafka's hash of a group's topics; [`Search`], a walk over all topics in slices.
//! Interface:  [`Topics::hash`], [`Topics::ids`], [`compile`], [`Search`].
//! Invariants: a regular expression costs a bounded time and memory, whatever its text.
//! Never:      members, records.
//! Tests:      below.
//! Start at:   [`Topics`].

use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_protocol::wire::Uuid;
use regex::bytes::{Regex, RegexBuilder};
use twox_hash::XxHash3_64;

use crate::access::{Access, Operation, RequestContext, Resource};
use crate::controller::image::Image;

/// Largest size of a compiled regular expression, in bytes.
const REGEX_BYTES_MAX: usize = 512 << 10;
/// Count of topics that a search looks at in one step.
pub(super) const SLICE: usize = if cfg!(test) { 3 } else { 512 };

/// The topics that there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topics<'a> {
    pub access: &'a Access,
    pub image: &'a Image,
    /// Another one when topics were made, grew or went since.
    pub version: u64,
}

impl Topics<'_> {
    /// Returns the count of partitions of a topic.
    pub(in crate::groups) fn partitions(self, topic: Uuid) -> i32 {
        let count = self.image.topic(topic).map_or(0, |topic| topic.partitions.len());
        i32::try_from(count).unwrap_or(i32::MAX)
    }

    /// Returns the ids of those topics that exist, in order.
    pub(in crate::groups) fn ids<'n>(self, names: impl Iterator<Item = &'n str>) -> BTreeSet<Uuid> {
        names.filter_map(|name| self.image.topic_named(name)).map(|topic| topic.id).collect()
    }

    /// Returns a number that changes if one of these topics is created, deleted or grows. The number is Kafka's, with
    /// one exception: Kafka's also covers the racks of replicas, which the assignors here do not use.
    pub(in crate::groups) fn hash<'n>(self, names: impl Iterator<Item = &'n str>) -> i64 {
        let mut all = Vec::new();
        for topic in names.filter_map(|name| self.image.topic_named(name)) {
            let mut bytes = vec![0u8];
            let id = topic.id.as_u128();
            for half in [id >> 64, id & u128::from(u64::MAX)] {
                bytes.extend(u64::try_from(half).expect("half of it").to_le_bytes());
            }
            let units = || topic.name.encode_utf16();
            bytes.extend(units().flat_map(u16::to_le_bytes));
            let length = i32::try_from(units().count()).unwrap_or(i32::MAX);
            let count = self.partitions(topic.id);
            for number in [length, count].into_iter().chain(0..count) {
                bytes.extend(number.to_le_bytes());
            }
            all.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
        }
        if all.is_empty() {
            return 0;
        }
        XxHash3_64::oneshot(&all).cast_signed()
    }
}

/// Compiles a regular expression that must match the whole name of a topic, or returns its mistake.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    let pattern = without_quotes(pattern);
    let build = |pattern: &str, unicode| {
        RegexBuilder::new(pattern)
            .unicode(unicode)
            .size_limit(REGEX_BYTES_MAX)
            .dfa_size_limit(REGEX_BYTES_MAX)
            .build()
    };
    let text = |error: regex::Error| match error {
        regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
        // The lines before show where.
        error => {
            let text = error.to_string();
            text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    };
    // Names of topics are ASCII; classes of all letters of the world would only make it larger.
    let unicode = build(&pattern, false).is_err();
    if unicode {
        build(&pattern, true).map_err(text)?;
    }
    build(&format!(r"\A(?:{pattern})\z"), unicode).map_err(text)
}

/// Replaces quotes: `\Q…\E` quotes the text between, in Kafka's expressions and in Java's `Pattern.quote`.
fn without_quotes(pattern: &str) -> String {
    let mut plain = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        if let Some(quoted) = escape.strip_prefix(r"\Q") {
            let (quoted, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            plain.push_str(&regex::escape(quoted));
            rest = after;
        } else {
            let end = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
            plain.push_str(&escape[..end]);
            rest = &escape[end..];
        }
    }
    plain.push_str(rest);
    plain
}

/// A regular expression, and the topics that it stands for.
pub(super) type Found = (Arc<str>, Vec<Arc<str>>);

/// Walk over all topics, which finds those that match regular expressions.
#[derive(Debug)]
pub(super) struct Search {
    /// Client whose request began the search: the search finds topics that it may see.
    context: RequestContext,
    patterns: Vec<(Arc<str>, Regex, Vec<Arc<str>>)>,
    after: Option<String>,
    /// Version of the topics when the search began.
    pub version: u64,
}

impl Search {
    /// Begins a search for the topics of these expressions. An earlier version checked them; one that does not compile
    /// here matches no topic.
    pub(super) fn new<'a>(
        context: RequestContext,
        patterns: impl Iterator<Item = &'a Arc<str>>,
        version: u64,
    ) -> Self {
        let read = |pattern: &Arc<str>| {
            // One that an earlier version took and this one does not stands for nothing.
            Some((pattern.clone(), compile(pattern).ok()?, Vec::new()))
        };
        Self { context, patterns: patterns.filter_map(read).collect(), after: None, version }
    }

    /// Looks at some topics. Returns the matches once it has seen all topics.
    pub(super) fn go_on(&mut self, topics: Topics<'_>) -> Option<Vec<Found>> {
        let after = self.after.take();
        let some = topics.image.topics_named_after(after.as_deref());
        let mut seen = 0;
        for topic in some.take(SLICE) {
            seen += 1;
            let name = topic.name.as_str();
            let mut matching = self.patterns.iter_mut();
            let mut matching = matching.by_ref().filter(|it| it.1.is_match(name.as_bytes()));
            if let Some(first) = matching.next()
                && topics.access.is_shown(&self.context, Operation::Describe, Resource::Topic(name))
            {
                let all = std::iter::once(first).chain(matching);
                all.for_each(|(.., found)| found.push(name.into()));
            }
            if seen == SLICE {
                self.after = Some(topic.name.clone());
            }
        }
        if seen == SLICE {
            return None;
        }
        let found = std::mem::take(&mut self.patterns).into_iter();
        Some(found.map(|(pattern, _, found)| (pattern, found)).collect())
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::ApiKey;

    use super::*;
    use crate::metadata_records::{CreateTopic, MetadataRecord, PlacePartition};

    fn image(topics: &[(&str, i32)]) -> Image {
        let mut image = Image::empty();
        for (number, (name, partitions)) in (1..).zip(topics) {
            let topic_id = Uuid::from_u128(number);
            let name = (*name).to_owned();
            image.apply(MetadataRecord::CreateTopic(CreateTopic { topic_id, name }));
            for partition in 0..*partitions {
                let placed = PlacePartition { topic_id, partition, replicas: Vec::new() };
                image.apply(MetadataRecord::PlacePartition(placed));
            }
        }
        image
    }

    fn matching(pattern: &str, names: &[&str]) -> Vec<String> {
        let regex = compile(pattern).expect("it is one");
        let names = names.iter().filter(|name| regex.is_match(name.as_bytes()));
        names.map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_hash_of_a_topic_is_the_one_that_kafka_stores() {
        let mut image = Image::empty();
        let topic_id = Uuid::from_u128(0x498c_12af_dc7b_4946_bda3_0c3e_add6_e8ec);
        let name = "facts".to_owned();
        image.apply(MetadataRecord::CreateTopic(CreateTopic { topic_id, name }));
        for partition in 0..2 {
            let placed = PlacePartition { topic_id, partition, replicas: Vec::new() };
            image.apply(MetadataRecord::PlacePartition(placed));
        }
        let topics = Topics { access: &Access::default(), image: &image, version: 0 };
        let expected = 0xcec0_b563_c89e_a191_u64.cast_signed();
        assert_eq!(topics.hash(["facts", "none"].into_iter()), expected);
        assert_eq!(topics.hash(["none"].into_iter()), 0);
    }

    #[test]
    fn regular_expressions_match_whole_names() {
        let names = ["a", "ab", "b", "orders.eu", "ordersXeu"];
        assert_eq!(matching("a|ab", &names), ["a", "ab"]);
        assert_eq!(matching("orders\\..*", &names), ["orders.eu"]);
        assert_eq!(matching("\\Qorders.eu\\E|b", &names), ["b", "orders.eu"]);
        assert_eq!(matching("\\pL", &names), ["a", "b"]);
    }

    #[test]
    fn what_is_no_regular_expression_is_refused_and_so_is_what_is_too_large() {
        for wrong in ["[", "a)(b", "(?=a)", "(a{1000}){1000}"] {
            assert!(compile(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_topics_that_may_be_seen_are_looked_at_slice_by_slice() {
        let names = ["a1", "a2", "a3", "a4", "b1", "b2", "b3"];
        let image = image(&names.map(|name| (name, 1)));
        let mut access = Access::default();
        access.deny_on_topic(Operation::Describe, "a2");
        let topics = Topics { access: &access, image: &image, version: 4 };
        let context = RequestContext::sample(ApiKey::ConsumerGroupHeartbeat);
        let patterns: [Arc<str>; 2] = ["a.".into(), ".*[3-9]".into()];
        let mut search = Search::new(context, patterns.iter(), topics.version);
        assert_eq!((search.go_on(topics), search.go_on(topics)), (None, None));
        let found = search.go_on(topics).expect("all were seen");
        let found: Vec<_> = found.iter().map(|(it, found)| (it.as_ref(), found.len())).collect();
        assert_eq!(found, [("a.", 3), (".*[3-9]", 3)]);
    }
}
