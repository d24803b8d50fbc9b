//! # Room card: seats
//!
//! Purpose:    bound the number of connections, of all clients and of one address.
//! Owns:       the counts. The limits may change from one connection to the next.
//! Interface:  [`Seats::take`], [`Seat`].
//! Invariants: a seat is given back when it is dropped, however the connection ends.
//! Never:      sockets.
//! Tests:      below; `compat/hostile`.
//! Start at:   [`Seats::take`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits of the number of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatLimits {
    /// Limit of all connections: `max.connections`, and the limit of descriptors.
    pub all: usize,
    /// `max.connections.per.ip`.
    pub address: usize,
    /// `max.connections.per.ip.overrides`.
    pub addresses: HashMap<IpAddr, usize>,
}

/// See the room card.
#[derive(Debug, Default)]
pub struct Seats {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<IpAddr, usize>,
}

/// One connection's.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    address: IpAddr,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSeat {
    /// All are taken.
    #[error("{0} connections are open, as many as max.connections and the open files allow")]
    All(usize),
    /// This address has its share.
    #[error("{0} connections of this address are open, as many as max.connections.per.ip allows")]
    Address(usize),
}

impl Seats {
    /// Takes a seat for one more connection of this address.
    pub fn take(self: &Arc<Self>, address: IpAddr, limits: &SeatLimits) -> Result<Seat, NoSeat> {
        // An IPv4 client of an IPv6 socket is the same client.
        let address = address.to_canonical();
        let address_max = *limits.addresses.get(&address).unwrap_or(&limits.address);
        let mut taken = self.lock();
        let of_address = taken.of.get(&address).copied().unwrap_or(0);
        if of_address >= address_max {
            return Err(NoSeat::Address(address_max));
        }
        if taken.all >= limits.all {
            return Err(NoSeat::All(limits.all));
        }
        taken.all += 1;
        taken.of.insert(address, of_address + 1);
        Ok(Seat { seats: Arc::clone(self), address })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        taken.all -= 1;
        let of_address = taken.of.get_mut(&self.address).expect("it was counted");
        *of_address -= 1;
        if *of_address == 0 {
            taken.of.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_counted_together_and_by_address() {
        let [here, mapped, there, elsewhere]: [IpAddr; 4] =
            ["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1", "::1"].map(|it| it.parse().unwrap());
        let addresses = HashMap::from([(there, 1)]);
        let mut limits = SeatLimits { all: 4, address: 2, addresses };
        let seats = Arc::new(Seats::default());
        let one = seats.take(here, &limits).unwrap();
        let two = seats.take(mapped, &limits).unwrap();
        assert_eq!(seats.take(here, &limits).unwrap_err(), NoSeat::Address(2));
        let three = seats.take(there, &limits).unwrap();
        assert_eq!(seats.take(there, &limits).unwrap_err(), NoSeat::Address(1));
        let four = seats.take(elsewhere, &limits).unwrap();
        assert_eq!(seats.take(elsewhere, &limits).unwrap_err(), NoSeat::All(4));
        drop(one);
        assert!(seats.take(here, &limits).is_ok());
        limits.all = 3;
        assert_eq!(
            seats.take(elsewhere, &limits).unwrap_err(),
            NoSeat::All(3),
            "who is there stays"
        );
        drop((two, three, four));
        assert_eq!(seats.lock().all, 0);
        assert!(seats.lock().of.is_empty());
    }
}
