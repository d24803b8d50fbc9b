//! # Room card: ending
//!
//! Purpose:    end the process when going on could lose data.
//! Owns:       the exit codes of a server that ends by itself.
//! Interface:  [`spawn`], [`on_disk_error`], [`on_fatal`].
//! Invariants: no destructor runs and no file is written after the decision: only the next start,
//!             which reads the medium, may trust the disk again.
//! Never:      a graceful stop (see `server`).
//! Tests:      `tests/`.
//! Start at:   [`on_disk_error`].

use std::error::Error;
use std::io;
use std::thread::JoinHandle;

/// The disk failed: a write or sync returned an error.
pub const EXIT_DISK: i32 = 74;

/// The server found itself wrong: a broken assertion, a thread that died.
pub const EXIT_FATAL: i32 = 70;

/// Starts a thread without which the server cannot go on: if it panics, the process ends.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(move || {
        let guard = EndOnPanic;
        body();
        std::mem::forget(guard);
    })
}

/// Logs and ends the process.
pub fn on_disk_error(error: &dyn Error) -> ! {
    let causes = causes(error);
    tracing::error!(
        causes,
        "storage stopped: {error}; the process ends, because only a restart may trust the disk again"
    );
    std::process::exit(EXIT_DISK);
}

/// Logs and ends the process.
pub fn on_fatal(reason: &str) -> ! {
    tracing::error!("the process ends: {reason}");
    std::process::exit(EXIT_FATAL);
}

fn causes(error: &dyn Error) -> String {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.join(": ")
}

struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        let thread = std::thread::current();
        on_fatal(&format!("thread {} panicked", thread.name().unwrap_or("without a name")));
    }
}
