//! Places in partitions as users write them: one language for `consume --from` and `group reset --to`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::ensure;
use duramen_client::{Client, OffsetAt};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use super::missing::{has_not, unknown_topic};
use super::usage::once;

/// A place, not yet an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The first record that is kept.
    Beginning,
    /// Behind the last record.
    End,
    /// This offset.
    Offset(i64),
    /// This number of records before the end.
    BeforeEnd(i64),
    /// The first record that is not older, in milliseconds since 1970.
    Timestamp(i64),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(ms) = text.strip_prefix('@') {
            let ms = ms.parse().map_err(|_| format!("`{ms}` is not a number of milliseconds"))?;
            return Ok(Self::Timestamp(ms));
        }
        match text {
            "beginning" | "start" | "earliest" => return Ok(Self::Beginning),
            "end" | "latest" => return Ok(Self::End),
            _ => {}
        }
        if let Ok(number) = text.parse::<i64>() {
            return Ok(if number < 0 { Self::BeforeEnd(-number) } else { Self::Offset(number) });
        }
        if text.ends_with(" ago")
            && let Ok(span) = text.parse::<Span>()
            && let Ok(then) = Timestamp::now().to_zoned(TimeZone::UTC).checked_add(span)
        {
            return Ok(Self::Timestamp(then.timestamp().as_millisecond()));
        }
        match text.parse::<Timestamp>() {
            Ok(time) => Ok(Self::Timestamp(time.as_millisecond())),
            Err(_) => {
                Err("give beginning, end, OFFSET, -N, @MILLISECONDS, a date and time such as \
                           2024-05-01T12:00:00Z, or a time such as `2h ago`"
                    .into())
            }
        }
    }
}

/// Offsets that a partition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The first offset that is kept.
    pub start: i64,
    /// One past the last.
    pub end: i64,
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end } = self;
        match end - start {
            0 => write!(f, "is empty and ends at {end}"),
            1 => write!(f, "holds offset {start} alone"),
            _ => write!(f, "holds offsets {start} to {}", end - 1),
        }
    }
}

impl Bounds {
    /// Asks for the offsets that each of these partitions holds now.
    pub async fn find(
        client: &Client,
        topic: &str,
        partitions: &[i32],
    ) -> anyhow::Result<BTreeMap<i32, Self>> {
        let places = |at: OffsetAt| partitions.iter().map(|part| (*part, at)).collect::<Vec<_>>();
        // The end first. A trim between the two requests may move the start past this end; the maximum below corrects
        // it.
        let ends = client.list_offsets(topic, &places(OffsetAt::End)).await?;
        let starts = client.list_offsets(topic, &places(OffsetAt::Start)).await?;
        let bounds = ends.into_iter().map(|(partition, end)| {
            let start = starts.get(&partition).map_or(0, |listed| listed.offset);
            (partition, Self { start, end: end.offset.max(start) })
        });
        Ok(bounds.collect())
    }

    /// Nearest offset that the partition holds.
    pub fn clamp(self, offset: i64) -> i64 {
        offset.clamp(self.start, self.end)
    }
}

/// Lists the partitions of a topic: those that the user named, or else all. Fails for one that the topic lacks.
pub async fn chosen(client: &Client, topic: &str, named: &[i32]) -> anyhow::Result<Vec<i32>> {
    let found = client.topic(topic, false).await.map_err(unknown_topic(topic))?;
    let mut there: Vec<i32> = found.partitions.iter().map(|part| part.partition_index).collect();
    there.sort_unstable();
    for partition in named {
        ensure!(there.contains(partition), has_not(topic, &there, *partition));
    }
    let named: Vec<i32> = once(named).into_iter().copied().collect();
    Ok(if named.is_empty() { there } else { named })
}

impl Place {
    /// Finds the offset of this place in each partition of a topic. Fails for a number that a partition does not hold.
    pub async fn find(
        self,
        client: &Client,
        topic: &str,
        bounds: &BTreeMap<i32, Bounds>,
    ) -> anyhow::Result<BTreeMap<i32, i64>> {
        let found = match self {
            Self::Timestamp(ms) => {
                let place = |partition: &i32| (*partition, OffsetAt::Timestamp(ms));
                client.list_offsets(topic, &bounds.keys().map(place).collect::<Vec<_>>()).await?
            }
            _ => BTreeMap::new(),
        };
        let mut offsets = BTreeMap::new();
        for (partition, held) in bounds {
            let at = found.get(partition).map_or(-1, |listed| listed.offset);
            offsets.insert(*partition, self.within(topic, *partition, *held, at)?);
        }
        Ok(offsets)
    }

    /// Makes an offset of this place. `at` is the offset that the partition's leader finds for the timestamp, or -1.
    fn within(self, topic: &str, partition: i32, held: Bounds, at: i64) -> anyhow::Result<i64> {
        Ok(match self {
            Self::Beginning => held.start,
            Self::End => held.end,
            Self::BeforeEnd(count) => held.clamp(held.end.saturating_sub(count)),
            // Every record is older: begin behind the last one.
            Self::Timestamp(_) if at < 0 => held.end,
            Self::Timestamp(_) => at,
            Self::Offset(offset) => {
                let Bounds { start, end } = held;
                ensure!(
                    (start..=end).contains(&offset),
                    "offset {offset} is not in partition {partition} of {topic}, which {held}; give one that all \
                     partitions have, or a place such as beginning"
                );
                offset
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_documented() {
        for (text, place) in [
            ("beginning", Place::Beginning),
            ("earliest", Place::Beginning),
            ("end", Place::End),
            ("0", Place::Offset(0)),
            ("4711", Place::Offset(4711)),
            ("-10", Place::BeforeEnd(10)),
            ("@1700000000000", Place::Timestamp(1_700_000_000_000)),
            ("2023-11-14T22:13:20Z", Place::Timestamp(1_700_000_000_000)),
            ("2023-11-14T23:13:20+01:00", Place::Timestamp(1_700_000_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
        for text in ["yesterday", "@noon", "2h", "noon ago", "2 hours later"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_ago_are_counted_from_now() {
        for (text, seconds) in [
            ("90s ago", 90),
            ("2h ago", 7_200),
            ("1 day 1 hour ago", 90_000),
            ("2 weeks ago", 1_209_600),
        ] {
            let Ok(Place::Timestamp(ms)) = text.parse() else { panic!("{text}") };
            let late = Timestamp::now().as_millisecond() - ms - seconds * 1000;
            assert!((0..60_000).contains(&late), "{text} is off by {late} ms");
        }
    }

    #[test]
    fn places_become_offsets_within_what_is_kept() {
        let held = Bounds { start: 5, end: 12 };
        let within = |place: Place, at| place.within("t", 0, held, at).map_err(|e| e.to_string());
        assert_eq!(within(Place::Beginning, -1), Ok(5));
        assert_eq!(within(Place::End, -1), Ok(12));
        assert_eq!(within(Place::BeforeEnd(3), -1), Ok(9));
        assert_eq!(within(Place::BeforeEnd(100), -1), Ok(5));
        assert_eq!(within(Place::BeforeEnd(i64::MAX), -1), Ok(5));
        assert_eq!(within(Place::Timestamp(1), 7), Ok(7));
        assert_eq!(within(Place::Timestamp(1), -1), Ok(12));
        assert_eq!(within(Place::Offset(12), -1), Ok(12));
        let error = "offset 4 is not in partition 0 of t, which holds offsets 5 to 11; give one that all partitions have, or a place such as beginning";
        assert_eq!(within(Place::Offset(4), -1), Err(error.to_owned()));
    }
}
