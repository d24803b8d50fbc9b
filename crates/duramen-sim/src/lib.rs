//! duramen-sim
