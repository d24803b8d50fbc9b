//! The macro that declares a message of Kafka.

/// [`message!`](crate::message), and in tests also a way to make random values.
macro_rules! declare {
    ($($table:tt)*) => {
        $crate::message! { $($table)* }
        #[cfg(test)]
        $crate::wire::entropy::sampled! { $($table)* }
    };
}
pub(super) use declare;
