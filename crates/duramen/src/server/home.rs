//! # Room card: home
//!
//! Purpose:    let tasks of sockets move from one runtime to another.
//! Owns:       the runtime where the tasks of links are to be; their move.
//! Interface:  [`Home`], [`live`], [`Left`], [`watched_here`].
//! Invariants: a task runs in one runtime at a time. It moves between two messages.
//! Never:      what the tasks say.
//! Tests:      `peers/tests.rs`.
//! Start at:   [`live`].
//!
//! While a cluster forms there is no node yet, so links begin on the threads of sockets. On two cores they move to the
//! node's thread once that runs: a frame that comes or goes wakes no other thread then.

use std::future::{Future, pending};
use std::io;
use std::os::fd::AsFd;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The runtime where a task is to be.
#[derive(Clone, Debug)]
pub(super) struct Home(watch::Receiver<Handle>);

impl Home {
    /// Returns the home at `runtime`, and the means to change it.
    pub(super) fn at(runtime: Handle) -> (watch::Sender<Handle>, Self) {
        let (sender, receiver) = watch::channel(runtime);
        (sender, Self(receiver))
    }

    /// Waits until the task has to move.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// Way in which a connection's task leaves its runtime without trouble.
#[derive(Debug)]
pub(super) enum Left {
    /// All is said.
    Done,
    /// The connection goes on in another runtime.
    Moves,
}

/// Runs a task at its home until it ends. `stay` returns the task's state where it has to move.
pub(super) async fn live<T, F>(mut task: T, home: fn(&mut T) -> &mut Home, stay: fn(T) -> F)
where
    F: Future<Output = Option<T>> + Send + 'static,
    T: Send + 'static,
{
    loop {
        let runtime = home(&mut task).0.borrow_and_update().clone();
        let mut running = JoinSet::new();
        running.spawn_on(stay(task), &runtime);
        match running.join_next().await {
            Some(Ok(Some(moves))) => task = moves,
            // The process ends if a runtime is gone.
            None | Some(Ok(None)) => return,
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return,
            },
        }
    }
}

/// Lets the runtime of this thread watch a socket.
pub(super) fn watched_here(stream: &TcpStream) -> io::Result<TcpStream> {
    let socket = stream.as_fd().try_clone_to_owned()?;
    TcpStream::from_std(socket.into())
}
