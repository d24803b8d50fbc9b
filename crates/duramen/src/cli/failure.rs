//! Failures of commands: a broker's error in words that name the fix, and the form in which the user reads an error.

use duramen_protocol::ErrorCode;
use serde::Serialize;

/// Error of a broker in words of ours, which name the fix.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Explained {
    code: ErrorCode,
    text: String,
}

/// Makes an error of a broker's error code, in words of ours.
pub(super) fn explained(code: ErrorCode, text: String) -> anyhow::Error {
    Explained { code, text }.into()
}

/// Refusal by the native API.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Refused {
    /// Name of the problem, if the node told one.
    problem: Option<String>,
    text: String,
}

/// Makes an error of a refusal by the native API.
pub(super) fn refused(problem: Option<String>, text: String) -> anyhow::Error {
    Refused { problem, text }.into()
}

/// Finds the error code of a broker in a cause of an error.
pub(super) fn code_of(cause: &(dyn std::error::Error + 'static)) -> Option<ErrorCode> {
    let explained = cause.downcast_ref::<Explained>().map(|it| it.code);
    explained.or_else(|| cause.downcast_ref::<duramen_client::Error>()?.code())
}

/// Finds the name of the native API's problem in a cause of an error.
pub(super) fn problem_of(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    cause.downcast_ref::<Refused>()?.problem.clone()
}

/// An error for programs.
#[derive(Serialize)]
struct Complaint {
    error: String,
    /// Kafka's name of the error code, or the native API's of the problem, if a broker returned one.
    code: Option<String>,
}

/// Prints the error to stderr, in the form that the user asked for.
pub(super) fn complain(error: &anyhow::Error, json: bool) {
    let text = format!("{error:#}");
    if !json {
        eprintln!("error: {text}");
        return;
    }
    let code = error.chain().find_map(code_of).map(|code| code.to_string());
    let code = code.or_else(|| error.chain().find_map(problem_of));
    let complaint = Complaint { error: text, code };
    let line = serde_json::to_string(&complaint).expect("text and text");
    eprintln!("{line}");
}

/// Tells whether the reader of the output closed the pipe.
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
