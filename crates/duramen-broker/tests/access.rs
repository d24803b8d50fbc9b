//! The page about access is what the table of questions says.

use std::fmt::Write as _;
use std::path::Path;

use duramen_broker::access::{Asked, NATIVE_QUESTIONS, NativeQuestion, QUESTIONS, Refusal};
use duramen_protocol::ErrorCode;

const HEAD: &str = "# Who is asked what

Before a node acts on a request, or looks anything up that could tell a stranger something, the request's handler asks
whether the client may perform an operation on a resource. [Rules](security.md#rules-of-access) answer.
The table has all questions of all served APIs, in the order in which a handler asks. Its operations and resources are
those of Apache Kafka 4.2; notes name each difference. `crates/duramen-broker/src/access/questions.rs` has the table:
`DURAMEN_WRITE_DOCS=1 cargo test -p duramen-broker --test access` writes the page.

*The next row decides* stands between alternatives: the client needs only one of the rights. *Left out* means that the
answer has no error, and does not mention the resource. *Sets* are the `authorized_operations` that a client may want.
Where a request names a topic by its id, an unknown id has its own error, as in Apache Kafka: ids are no secrets.

| API | Operation | Resource | Refusal | Note |
|---|---|---|---|---|
";

const NATIVE_HEAD: &str = "
## The native API

Each operation asks these questions about its topic or share group. A refusal is the problem `not-authorized`. Reads, sessions
and topics are requests of Kafka, with the questions above.

| Operation | Right | Resource |
|---|---|---|
";

fn coded(code: ErrorCode) -> String {
    format!("`{}` ({})", code.name(), code.code())
}

#[test]
fn the_page_about_access_is_written_from_the_table() {
    let mut page = HEAD.to_owned();
    for row in QUESTIONS {
        let (operation, resource) = match row.asked {
            Asked::Operation(operation, kind) => (format!("{operation:?}"), format!("{kind:?}")),
            Asked::OnAny(operation, kind) => (format!("{operation:?}"), format!("any {kind:?}")),
            Asked::Each(kind) => ("each, for the set".to_owned(), format!("{kind:?}")),
            Asked::Nothing => ("none".to_owned(), "none".to_owned()),
        };
        let refusal = match (row.asked, row.refusal) {
            (Asked::Nothing, _) => "none".to_owned(),
            (_, Refusal::Code(code)) => coded(code),
            (_, Refusal::Next) => "the next row decides".to_owned(),
            (_, Refusal::Omits) => "left out".to_owned(),
            (Asked::Each(_), Refusal::Lacks) => "the set lacks the operation".to_owned(),
            (_, Refusal::Lacks) => "the set is empty".to_owned(),
        };
        let (api, note) = (row.api, row.note);
        writeln!(page, "| {api} | {operation} | {resource} | {refusal} | {note} |")
            .expect("memory");
    }
    page.push_str(NATIVE_HEAD);
    for NativeQuestion { op, operation, kind } in NATIVE_QUESTIONS {
        writeln!(page, "| {op:?} | {operation:?} | {kind:?} |").expect("memory");
    }
    let page = page.replace("|  |\n", "| |\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/access.md");
    if std::env::var_os("DURAMEN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the document is ours");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "run with DURAMEN_WRITE_DOCS=1 to write docs/access.md");
}
