//! Verdicts, counted and logged: denials, and on demand what was allowed. A client that asks all the time does not fill
//! the log.

use super::record::{AccessRecord, AccessRecords, Activity};
use super::{Kind, Operation, RequestContext};

/// Most lines in a second.
const LINES_MAX: u64 = 20;
const SECOND_US: u64 = 1_000_000;

/// One verdict.
#[derive(Clone, Debug)]
struct Case {
    context: RequestContext,
    operation: Operation,
    kind: Kind,
    name: String,
}

/// Verdicts of one kind of the present turn, and the count of those that were logged before.
#[derive(Clone, Debug, Default)]
pub(super) struct Judged {
    noted: Vec<Case>,
    /// Verdicts since the start.
    count: u64,
    /// Verdicts that got no line since the last one that counts them.
    unsaid: u64,
    /// Verdicts of the present turn beyond those that are noted.
    left_out: u64,
    /// Second in which lines were logged last, and how many.
    second: u64,
    lines: u64,
}

impl Judged {
    /// Notes a verdict, unless this turn has it already: a handler may ask twice.
    pub(super) fn note(
        &mut self,
        context: &RequestContext,
        (operation, kind, name): (Operation, Kind, &str),
    ) {
        let is_known = |it: &Case| {
            (&*it.context.principal, it.context.api) == (&*context.principal, context.api)
                && (it.operation, it.kind, it.name.as_str()) == (operation, kind, name)
        };
        if self.noted.iter().any(is_known) {
            return;
        }
        self.count += 1;
        if (self.noted.len() as u64) < LINES_MAX {
            let (context, name) = (context.clone(), name.to_owned());
            self.noted.push(Case { context, operation, kind, name });
        } else {
            self.unsaid += 1;
            self.left_out += 1;
        }
    }

    /// Returns the number of verdicts since the start.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Logs what was noted, as far as there may be lines. Returns all of it as records, if somebody keeps them.
    pub(super) fn say(&mut self, is_allowed: bool, now_us: u64, keeps: bool) -> AccessRecords {
        let second = now_us / SECOND_US;
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        let left_out = std::mem::take(&mut self.left_out);
        let mut kept = AccessRecords::default();
        for case in std::mem::take(&mut self.noted) {
            if self.lines < LINES_MAX {
                self.lines += 1;
                case.say(is_allowed, std::mem::take(&mut self.unsaid));
            } else {
                self.unsaid += 1;
            }
            if keeps {
                kept.records.push(case.record(is_allowed));
            }
        }
        kept.left_out = if keeps { left_out } else { 0 };
        kept
    }

    /// Forgets what was noted: nobody wants to read it.
    pub(super) fn pass_over(&mut self) {
        self.noted.clear();
        self.left_out = 0;
    }
}

impl Case {
    fn say(&self, is_allowed: bool, unsaid: u64) {
        let Self { context, operation, kind, name } = self;
        let api = context.api.to_string();
        tracing::info!(
            target: "duramen::access",
            principal = &*context.principal,
            host = context.host(),
            listener = &*context.listener,
            api,
            ?operation,
            resource = ?kind,
            name,
            unsaid,
            "{}", word(is_allowed)
        );
    }

    fn record(self, is_allowed: bool) -> AccessRecord {
        let Self { context, operation, kind, name } = self;
        AccessRecord {
            context,
            activity: Activity::of(operation),
            message: word(is_allowed),
            detail: String::new(),
            resource: (kind.name(), name),
            verdict: Some((operation, is_allowed)),
        }
    }
}

const fn word(is_allowed: bool) -> &'static str {
    if is_allowed { "allowed" } else { "denied" }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::ApiKey;

    use super::*;

    #[test]
    fn all_denials_are_counted_and_a_few_have_lines() {
        let context = RequestContext::sample(ApiKey::Produce);
        let mut it = Judged::default();
        let deny = |it: &mut Judged, times: u64| {
            for number in 0..times {
                let name = format!("topic-{number}");
                it.note(&context, (Operation::Write, Kind::Topic, &name));
            }
        };
        deny(&mut it, 15);
        deny(&mut it, 15);
        assert_eq!(it.count(), 15, "a handler that asks twice is denied once");
        let kept = it.say(false, 5, false);
        assert!(kept.records.is_empty(), "nobody keeps them");
        assert_eq!((it.lines, it.unsaid), (15, 0));
        deny(&mut it, 30);
        let kept = it.say(false, 6, true);
        assert_eq!(
            (kept.records.len(), kept.left_out),
            (20, 10),
            "records have bounds of their own"
        );
        assert_eq!((it.count(), it.lines, it.unsaid), (45, 20, 15));
        deny(&mut it, 1);
        it.say(false, SECOND_US, false);
        assert_eq!((it.lines, it.unsaid), (1, 0), "the first line counts the others");
        deny(&mut it, 1);
        it.pass_over();
        assert_eq!((it.count(), it.lines), (47, 1));
    }

    #[test]
    fn nobody_counts_records_that_nobody_keeps() {
        let context = RequestContext::sample(ApiKey::Produce);
        let mut it = Judged::default();
        for keeps in [false, true] {
            for number in 0..LINES_MAX + 5 {
                it.note(&context, (Operation::Write, Kind::Topic, &format!("topic-{number}")));
            }
            let kept = it.say(false, 5, keeps);
            let expected = if keeps { (20, 5) } else { (0, 0) };
            assert_eq!((kept.records.len(), kept.left_out), expected);
        }
    }
}
