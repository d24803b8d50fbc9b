//! Sources of a setting's value, in words.

/// Kafka's code for a value that the topic itself has.
pub(super) const SOURCE_TOPIC: i8 = 1;

/// Names the source of a value, by Kafka's code.
pub(super) fn source(code: i8) -> &'static str {
    match code {
        SOURCE_TOPIC => "set on the topic",
        2 => "set on the broker at run time",
        3 => "set on all brokers at run time",
        4 => "set on the broker",
        5 => "default",
        _ => "unknown",
    }
}
