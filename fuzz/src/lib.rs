//! # Room card: fuzz targets
//!
//! Purpose:    any bytes, given to what reads bytes that somebody else wrote.
//! Owns:       the targets, the inputs to begin with, and an allocator that takes one oversized allocation for a find.
//! Interface:  [`TARGETS`], [`seeds`].
//! Invariants: a target returns, or panics on a find; it keeps nothing between two inputs.
//! Never:      libFuzzer: `libfuzzer/` gives each target a program, with a lock file and flags of its own.
//! Tests:      `tests/corpus.rs` runs every target on the inputs to begin with; `run.sh` makes more.
//! Start at:   [`TARGETS`].
//!
//! libFuzzer's own `-malloc_limit_mb` works only under a sanitizer, which stable Rust does not have.

pub mod batch_reader;
pub mod journal;
pub mod login;
pub mod name_rules;
pub mod native_filter;
pub mod native_json;
pub mod request_decoder;
pub mod response_decoder;
pub mod seeds;
pub mod segment_recovery;
pub mod tokens;

use std::alloc::{GlobalAlloc, Layout, System};

/// Reads any bytes, and panics on a find.
pub type Target = fn(&[u8]);

/// Every target with its name.
pub const TARGETS: [(&str, Target); 10] = [
    ("batch_reader", batch_reader::run),
    ("journal", journal::run),
    ("login", login::run),
    ("name_rules", name_rules::run),
    ("native_filter", native_filter::run),
    ("native_json", native_json::run),
    ("request_decoder", request_decoder::run),
    ("response_decoder", response_decoder::run),
    ("segment_recovery", segment_recovery::run),
    ("tokens", tokens::run),
];

/// No input is longer than 16 KiB, so an allocation of this size can only come from a number that was believed
/// before it was checked.
pub const ALLOCATION_BYTES_MAX: usize = 64 << 20;

struct Limited;

fn check(bytes: usize) {
    if bytes > ALLOCATION_BYTES_MAX {
        // Not a panic: that would allocate, and decoders might be tested under `catch_unwind` one day.
        eprintln!("fuzz: one allocation of {bytes} bytes");
        std::process::abort();
    }
}

// SAFETY: every call is passed on unchanged, or the process ends.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check(size);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;
