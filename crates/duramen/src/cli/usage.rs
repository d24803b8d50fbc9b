//! Checks of a command line before the command asks a broker, and the joined outcome of several requests.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use anyhow::anyhow;
use clap::builder::Resettable;
use clap::{Arg, Command};
use jiff::SignedDuration;
use serde::Serialize;

use super::bootstrap::Cluster;
use super::failure::{code_of, explained, problem_of, refused};
use super::screen;
use crate::config::Mistakes;

/// Most letters that Kafka allows in the name of a topic.
const TOPIC_LETTERS_MAX: usize = 249;

/// Mistake that the command line alone shows.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// Makes an error of a mistake that the command line alone shows. Its exit code differs from that of a failure.
pub(super) fn misuse(text: impl Into<String>) -> anyhow::Error {
    Misuse(text.into()).into()
}

/// Refuses the command line unless a condition holds.
pub(super) fn demand(makes_sense: bool, text: &str) -> anyhow::Result<()> {
    if makes_sense { Ok(()) } else { Err(misuse(text)) }
}

/// Tells whether the caller has to change the command line, the environment or the configuration file.
pub(super) fn is_misuse(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Misuse>() || cause.is::<Mistakes>())
}

/// Makes all options read `-1` as their value, so that the error names the allowed values. An empty variable counts as
/// one that is not set.
pub(super) fn adapted(command: Command) -> Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let adapt = |arg: Arg| {
        let takes_values = arg.get_action().takes_values();
        let arg = if takes_values { arg.allow_negative_numbers(true) } else { arg };
        if arg.get_env().is_some_and(is_empty) {
            arg.env(Resettable::<clap::builder::OsStr>::Reset)
        } else {
            arg
        }
    };
    command.mut_args(adapt).mut_subcommands(adapted)
}

/// Reads the name of a topic. Refuses an impossible name before the command asks a broker.
pub(super) fn topic_name(text: &str) -> Result<String, String> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let is_name = (1..=TOPIC_LETTERS_MAX).contains(&text.len())
        && text.chars().all(is_allowed)
        && !matches!(text, "." | "..");
    if is_name {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a topic's name has letters, digits, '.', '_' and '-', at most {TOPIC_LETTERS_MAX}, and is neither '.' nor '..'"
    ))
}

/// Reads a whole number that is not negative.
pub(super) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "give a whole number, 0 or more".to_owned())
}

/// Reads a length of time.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<SignedDuration>().ok();
    let time = time.and_then(|it| Duration::try_from(it).ok());
    time.ok_or_else(|| format!("`{text}` is not a time such as 90s, 10m or 2h"))
}

/// Leaves out repeated names.
pub(super) fn once<T: Ord>(named: &[T]) -> Vec<&T> {
    let mut seen = BTreeSet::new();
    named.iter().filter(|it| seen.insert(*it)).collect()
}

/// Sorts settings by name. Refuses two values for one setting, because the user may mean either.
pub(super) fn settings(given: &[(String, String)]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut settings = BTreeMap::new();
    for (name, value) in given {
        let before = settings.insert(name.clone(), value.clone());
        if let Some(before) = before.filter(|before| before != value) {
            let text = format!("{name} has two values, {before} and {value}; give it one");
            return Err(misuse(text));
        }
    }
    Ok(settings)
}

/// Joins the failures of `asked` things that the command tried one after the other.
pub(super) fn joined(asked: usize, mut failures: Vec<anyhow::Error>) -> anyhow::Result<()> {
    if failures.len() < 2 {
        return failures.pop().map_or(Ok(()), Err);
    }
    let mut text = format!("{} of {asked} failed", failures.len());
    for failure in &failures {
        write!(text, "\n  {failure:#}").expect("a string takes all");
    }
    let mut codes = failures.iter().map(|failure| failure.chain().find_map(code_of));
    let code = codes.next().flatten();
    // Programs get the code that all failures share, and none if they differ.
    let code = code.filter(|code| codes.all(|other| other == Some(*code)));
    let mut problems = failures.iter().map(|failure| failure.chain().find_map(problem_of));
    let problem = problems.next().flatten();
    let problem = problem.filter(|problem| problems.all(|other| other.as_ref() == Some(problem)));
    Err(match (code, problem) {
        (Some(code), _) => explained(code, text),
        (None, Some(problem)) => refused(Some(problem), text),
        (None, None) => anyhow!("{text}"),
    })
}

/// Does the same to all of `named`, one after the other, and goes on after a failure. Prints each outcome as a line at
/// once, or all as JSON in the end.
pub(super) async fn one_by_one<T: Serialize>(
    cluster: &Cluster,
    named: &[String],
    mut act: impl AsyncFnMut(&str) -> anyhow::Result<T>,
    line: impl Fn(&T) -> String,
) -> anyhow::Result<()> {
    let names = once(named);
    let (mut done, mut failures) = (Vec::new(), Vec::new());
    for name in &names {
        match act(name).await {
            Ok(outcome) => {
                if !cluster.json() {
                    screen::print_line(&line(&outcome))?;
                }
                done.push(outcome);
            }
            Err(error) => failures.push(error),
        }
    }
    // Print the outcomes, although another thing failed.
    if cluster.json() && (failures.is_empty() || !done.is_empty()) {
        screen::print_json(&done)?;
    }
    joined(names.len(), failures)
}

/// Splits `KEY=VALUE` into two halves.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err(format!("`{text}` is not KEY=VALUE")),
    }
}

/// Finds a word without regard to case and dashes: `preparing-rebalance` is `PreparingRebalance`.
pub(super) fn word(text: &str, known: &[&'static str], what: &str) -> Result<&'static str, String> {
    let plain = |text: &str| text.replace(['-', '_'], "").to_ascii_lowercase();
    let found = known.iter().find(|word| plain(word) == plain(text)).copied();
    found.ok_or_else(|| format!("there is no {what} {text}; there are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use duramen_protocol::ErrorCode;

    use super::*;

    #[test]
    fn names_of_topics_are_kafkas() {
        let longest = "x".repeat(249);
        for name in ["a", "a.b-c_D9", "-1", "...", &longest] {
            assert_eq!(topic_name(name).as_deref(), Ok(name));
        }
        let too_long = "x".repeat(250);
        for name in ["", ".", "..", "bad/name", "a b", "é", &too_long] {
            assert!(topic_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_setting_has_one_value() {
        let given = |value: &str| ("a".to_owned(), value.to_owned());
        assert_eq!(settings(&[given("1"), given("1")]).unwrap()["a"], "1");
        let error = settings(&[given("1"), given("2")]).unwrap_err();
        assert_eq!(error.to_string(), "a has two values, 1 and 2; give it one");
        assert!(is_misuse(&error));
    }

    #[test]
    fn failures_are_told_together_and_keep_the_code_that_they_share() {
        let missing = |text: &str| explained(ErrorCode::GroupIdNotFound, text.into());
        assert!(joined(3, Vec::new()).is_ok());
        assert_eq!(joined(3, vec![missing("no a")]).unwrap_err().to_string(), "no a");
        let both = joined(3, vec![missing("no a"), missing("no b")]).unwrap_err();
        assert_eq!(both.to_string(), "2 of 3 failed\n  no a\n  no b");
        assert_eq!(both.chain().find_map(code_of), Some(ErrorCode::GroupIdNotFound));
        let mixed = joined(2, vec![missing("no a"), anyhow!("b is odd")]).unwrap_err();
        assert_eq!(mixed.chain().find_map(code_of), None);
        let lost = |text: &str| refused(Some("lease-lost".into()), text.into());
        let both = joined(2, vec![lost("no a"), lost("no b")]).unwrap_err();
        assert_eq!(both.chain().find_map(problem_of).as_deref(), Some("lease-lost"));
        let mixed = joined(2, vec![lost("no a"), missing("no b")]).unwrap_err();
        assert_eq!(mixed.chain().find_map(problem_of), None);
    }

    #[test]
    fn times_are_not_negative() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1h 30m"), Ok(Duration::from_secs(5_400)));
        for wrong in ["", "10", "-10m", "ten"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_are_split_at_the_first_equals_sign() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(key_value("=b").is_err() && key_value("a").is_err());
    }
}
