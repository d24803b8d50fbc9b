//! `docs/api-versions.md`, rendered from the table.

use std::fmt::Write;

use super::{API_TABLE, Api, OWN_TABLE, Status};
use crate::wire::Versions;

const HEAD: &str = "# Kafka API versions

Written by a test from the table in `crates/duramen-protocol/src/api.rs`; change that, then run
`DURAMEN_WRITE_DOCS=1 cargo test -p duramen-protocol api`.

*Versions* are what Apache Kafka 4.3 accepts. For a *served* API we accept all of them, and advertise the same
unless a note says otherwise. An API that is not served is not advertised, and a request for it closes the
connection. *Flexible from* is the first version with compact lengths and tagged fields.

";

const OWN: &str = "
## Our own

Spoken by `duramen`'s own commands and Duramen nodes. `ApiVersions` lists them only to a client whose software name
begins with `duramen`. All versions are flexible.

| Key | API | Versions |
|---|---|---|
";

/// Returns the document's text.
pub fn render() -> String {
    let mut text = String::from(HEAD);
    let served = API_TABLE.iter().filter(|api| api.is_served()).count();
    writeln!(text, "{served} of {} APIs are served.\n", API_TABLE.len())
        .expect("a string takes all");
    text.push_str("| Key | API | Versions | Flexible from | Status |\n|---|---|---|---|---|\n");
    for api in API_TABLE {
        row(&mut text, api);
    }
    text.push_str(OWN);
    for api in OWN_TABLE {
        let accepted = range(api.accepted);
        writeln!(text, "| {} | {} | {accepted} |", api.key.code(), api.name)
            .expect("a string takes all");
    }
    text
}

fn row(text: &mut String, api: &Api) {
    let flexible = if api.flexible.is_empty() || api.flexible.first > api.accepted.last {
        String::from("never")
    } else {
        api.flexible.first.to_string()
    };
    let status = match api.status {
        Status::Served if api.advertised == api.accepted => String::from("served"),
        Status::Served => format!("served; advertised as {}", range(api.advertised)),
        Status::NotYet => String::from("not yet"),
        Status::Refused(reason) => format!("refused: {reason}"),
    };
    let accepted = range(api.accepted);
    writeln!(text, "| {} | {} | {accepted} | {flexible} | {status} |", api.key.code(), api.name)
        .expect("a string takes all");
}

fn range(versions: Versions) -> String {
    if versions.is_empty() {
        String::from("none")
    } else if versions.first == versions.last {
        versions.first.to_string()
    } else {
        format!("{}–{}", versions.first, versions.last)
    }
}
