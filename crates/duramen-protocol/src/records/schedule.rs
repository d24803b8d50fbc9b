//! Headers that tell a work queue when a record may be delivered, and before which others.

use super::Record;

/// Header of a record: the time before which no worker gets it, in milliseconds since 1970.
pub const DELIVER_AT_HEADER: &str = "duramen-deliver-at";
/// Header of a record: the time from which it is of no use, in milliseconds since 1970.
pub const EXPIRES_HEADER: &str = "duramen-expires";
/// Header of a record: its priority, from 0 to 9.
pub const PRIORITY_HEADER: &str = "duramen-priority";
/// Highest priority of a record.
pub const PRIORITY_MAX: u8 = 9;
/// Priority of a record without a header for it.
pub const PRIORITY_USUAL: u8 = 4;

/// The time of a record, and its rank among others, as its headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Time before which no worker gets the record, in milliseconds since 1970; 0 for none.
    pub deliver_at_ms: i64,
    /// Time from which the record is of no use, in milliseconds since 1970; `i64::MAX` for none.
    pub expires_ms: i64,
    /// A worker gets a record of a higher priority first.
    pub priority: u8,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { deliver_at_ms: 0, expires_ms: i64::MAX, priority: PRIORITY_USUAL }
    }
}

impl Schedule {
    /// Reads the schedule of a record. A header that says nothing right is passed over: producers of queue topics are
    /// refused such a record.
    pub fn of(record: &Record<'_>) -> Self {
        let mut schedule = Self::default();
        for header in record.headers {
            schedule.take_in(header.key, header.value);
        }
        schedule
    }

    /// Takes one header in. Returns `None` if it is none of a schedule, and otherwise whether its value is right.
    pub(super) fn take_in(&mut self, name: &[u8], value: Option<&[u8]>) -> Option<bool> {
        let at = match () {
            () if name == DELIVER_AT_HEADER.as_bytes() => &mut self.deliver_at_ms,
            () if name == EXPIRES_HEADER.as_bytes() => &mut self.expires_ms,
            () if name == PRIORITY_HEADER.as_bytes() => {
                let priority = number(value).and_then(|it| u8::try_from(it).ok());
                let priority = priority.filter(|it| *it <= PRIORITY_MAX);
                self.priority = priority.unwrap_or(self.priority);
                return Some(priority.is_some());
            }
            () => return None,
        };
        let time = number(value).filter(|it| *it > 0);
        *at = time.unwrap_or(*at);
        Some(time.is_some())
    }
}

/// Reads a number in decimal digits.
fn number(value: Option<&[u8]>) -> Option<i64> {
    let digits = value.filter(|it| it.iter().all(u8::is_ascii_digit))?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_make_a_schedule_and_wrong_ones_are_told() {
        let mut schedule = Schedule::default();
        let mut take =
            |name: &str, value: &str| schedule.take_in(name.as_bytes(), Some(value.as_bytes()));
        assert_eq!(take("duramen-deliver-at", "1700000000000"), Some(true));
        assert_eq!(take("duramen-expires", "1700000060000"), Some(true));
        assert_eq!(take("duramen-priority", "9"), Some(true));
        assert_eq!(take("other", "9"), None);
        for wrong in ["", "-1", "+1", "0x1", " 1", "1.5", "0", "9223372036854775808"] {
            assert_eq!(take("duramen-deliver-at", wrong), Some(false), "{wrong}");
        }
        for wrong in ["", "10", "-1", "high", "256"] {
            assert_eq!(take("duramen-priority", wrong), Some(false), "{wrong}");
        }
        assert_eq!(schedule.take_in(b"duramen-expires", None), Some(false));
        let expected = Schedule {
            deliver_at_ms: 1_700_000_000_000,
            expires_ms: 1_700_000_060_000,
            priority: 9,
        };
        assert_eq!(schedule, expected);
    }
}
