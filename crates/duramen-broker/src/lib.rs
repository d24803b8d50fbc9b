//! duramen-broker
