//! A machine: how many processors, how they stand together, and what it costs them to hand a line
//! from one to another.

/// The machine that is imitated. Times are in picoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Processors of the machine; structures have as many shards.
    pub processors: usize,
    /// Processors that share a last-level cache.
    pub cluster: usize,
    /// Processors of a socket.
    pub socket: usize,
    /// A line from a processor of the same cluster.
    pub near: u64,
    /// A line from another cluster of the socket.
    pub across: u64,
    /// A line from another socket.
    pub far: u64,
    /// Each line more of several that are asked for together, whatever its way.
    pub further: u64,
    /// From the call that wakes a sleeping thread until it runs.
    pub wake: u64,
}

impl Model {
    /// A machine of equal neighbours.
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
            wake: 0,
        }
    }

    /// The same machine with every transfer this many percent of what it was.
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

    /// The same machine, all of its processors equally far apart.
    #[must_use]
    pub fn with_equal_transfers(&self, transfer: u64) -> Self {
        Self {
            near: transfer,
            across: transfer,
            far: transfer,
            ..self.clone()
        }
    }

    /// Picoseconds for a line to go from one processor to another.
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
    use super::Model;

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
            wake: 0,
        };
        assert_eq!(model.transfer(0, 3), 1);
        assert_eq!(model.transfer(3, 4), 2);
        assert_eq!(model.transfer(7, 8), 3);
        assert_eq!(model.with_transfers(200).transfer(8, 0), 6);
        assert_eq!(model.with_equal_transfers(5).transfer(8, 0), 5);
    }
}
