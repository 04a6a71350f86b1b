//! The simulated machine: the number of processors, their topology, and the cost of moving a line
//! from one processor to another.

/// A machine to simulate. Times are in picoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Processors of the machine; sharded structures get as many shards.
    pub processors: usize,
    /// Processors that share a last-level cache.
    pub cluster: usize,
    /// Processors of a socket.
    pub socket: usize,
    /// Transfer of a line from a processor of the same cluster.
    pub near: u64,
    /// Transfer of a line from another cluster of the socket.
    pub across: u64,
    /// Transfer of a line from another socket.
    pub far: u64,
    /// The cost of each additional line of a group that is requested together, at any distance.
    pub further: u64,
    /// The costs of waiting.
    pub waiting: Waiting,
}

/// The costs of waiting for a lock or a condition. Times are in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// One pause instruction of a spinning processor.
    pub pause: u64,
    /// Yielding the processor when no other thread wants it.
    pub yield_time: u64,
    /// Waking a sleeping thread, for the waker.
    pub call: u64,
    /// From the waker's call until the woken thread runs.
    pub wake: u64,
    /// Starting a thread, for the thread that starts it.
    pub start: u64,
}

impl Waiting {
    /// Pauses before each of the first retries.
    const PAUSES: [u64; 3] = [2, 4, 8];
    /// Further retries; the thread yields before each.
    const YIELDS: u64 = 7;

    /// Time that a thread spins before it sleeps.
    #[must_use]
    pub fn spin_time(&self) -> u64 {
        self.pauses() + Self::YIELDS * self.yield_time
    }

    fn pauses(&self) -> u64 {
        Self::PAUSES.iter().sum::<u64>() * self.pause
    }

    /// The first retry at or after `clock` of a thread that began to spin at `since`.
    pub(crate) fn next_retry(&self, since: u64, clock: u64) -> u64 {
        let mut look = since;
        for pauses in Self::PAUSES {
            look += pauses * self.pause;
            if look >= clock {
                return look;
            }
        }
        let times = (clock - look).div_ceil(self.yield_time.max(1));
        (look + times * self.yield_time).max(clock)
    }
}

impl Model {
    /// A machine whose processors all have the same distance.
    #[must_use]
    pub fn uniform(processors: usize, transfer: u64) -> Self {
        Self {
            processors,
            cluster: processors,
            socket: processors,
            near: transfer,
            across: transfer,
            far: transfer,
            further: 0,
            waiting: Waiting::default(),
        }
    }

    /// The same machine with every transfer scaled to `percent`.
    #[must_use]
    pub fn with_transfers(&self, percent: u64) -> Self {
        let scale = |time: u64| time * percent / 100;
        Self {
            near: scale(self.near),
            across: scale(self.across),
            far: scale(self.far),
            further: scale(self.further),
            ..self.clone()
        }
    }

    /// The same machine where waking a sleeping thread takes 25 us, 10 of them the waker's. A guest
    /// is that slow if the host has put its processors to sleep (23 and 9.6 us were measured on
    /// one).
    #[must_use]
    pub fn with_slow_waking(&self) -> Self {
        const MICROSECOND: u64 = 1_000_000;
        let waiting = Waiting {
            call: 10 * MICROSECOND,
            wake: 25 * MICROSECOND,
            ..self.waiting
        };
        Self {
            waiting,
            ..self.clone()
        }
    }

    /// The same machine with all processors at the same distance.
    #[must_use]
    pub fn with_equal_transfers(&self, transfer: u64) -> Self {
        Self {
            near: transfer,
            across: transfer,
            far: transfer,
            ..self.clone()
        }
    }

    /// Picoseconds to move a line from one processor to another.
    pub(crate) fn transfer(&self, from: usize, to: usize) -> u64 {
        if from / self.cluster == to / self.cluster {
            self.near
        } else if from / self.socket == to / self.socket {
            self.across
        } else {
            self.far
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Model, Waiting};

    #[test]
    fn distance_is_by_cluster_and_socket() {
        let model = Model {
            processors: 16,
            cluster: 4,
            socket: 8,
            near: 1,
            across: 2,
            far: 3,
            further: 0,
            waiting: Waiting::default(),
        };
        assert_eq!(model.transfer(0, 3), 1);
        assert_eq!(model.transfer(3, 4), 2);
        assert_eq!(model.transfer(7, 8), 3);
        assert_eq!(model.with_transfers(200).transfer(8, 0), 6);
        assert_eq!(model.with_equal_transfers(5).transfer(8, 0), 5);
    }

    #[test]
    fn who_waits_looks_ten_times() {
        let waiting = Waiting {
            pause: 10,
            yield_time: 100,
            call: 0,
            wake: 0,
            start: 0,
        };
        assert_eq!(waiting.spin_time(), 840);
        let looks = [0, 20, 21, 60, 61, 140, 141, 240, 241, 840];
        let seen = [20, 20, 60, 60, 140, 140, 240, 240, 340, 840];
        assert_eq!(
            looks.map(|after| waiting.next_retry(1000, 1000 + after) - 1000),
            seen
        );
        assert_eq!(Waiting::default().next_retry(5, 9), 9);
    }
}
