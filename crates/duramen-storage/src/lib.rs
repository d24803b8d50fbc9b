//! duramen-storage
