//! A bound on the buffers of all connections: the sandbox's memory limit does not cover the gateway.

use super::connection::{Connection, Front};
use crate::sys::weaken;
use std::collections::HashMap;

/// A connection whose peer does not read buffers up to 0.6 MiB, and there are 1,024.
const MOST: usize = 32 << 20;
/// A connection with less is not cut for the sum.
const LITTLE: usize = 16 << 10;

#[derive(Default)]
pub(super) struct Waiting {
    sum: usize,
    of: HashMap<u32, usize>,
}

impl Waiting {
    /// Returns whether the connection must end.
    pub(super) fn is_too_much(&mut self, number: u32, connection: &Connection) -> bool {
        self.count(number, connection.memory())
    }

    fn count(&mut self, number: u32, bytes: usize) -> bool {
        self.sum = self.sum + bytes - self.of.insert(number, bytes).unwrap_or(0);
        self.sum > MOST && bytes > LITTLE && !weaken::is_off("gateway-memory")
    }

    pub(super) fn forget(&mut self, number: u32) {
        self.sum -= self.of.remove(&number).unwrap_or(0);
    }
}

impl Connection {
    fn memory(&self) -> usize {
        let in_tls = match &self.front {
            Front::Brokered(tls) => tls.memory(),
            _ => 0,
        };
        self.held.capacity() + self.up.memory() + self.down.memory() + in_tls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_with_more_than_a_little_ends_for_the_sum() {
        let mut waiting = Waiting::default();
        assert!(!waiting.count(1, MOST));
        assert!(!waiting.count(2, LITTLE));
        assert!(waiting.count(2, LITTLE + 1));
        assert!(!waiting.count(2, 0));
        waiting.forget(1);
        assert!(!waiting.count(3, MOST));
        waiting.forget(4);
        assert_eq!(waiting.sum, MOST);
    }
}
