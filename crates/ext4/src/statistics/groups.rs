//! The free space of one group, for people and programs.
//!
//! All numbers are in blocks, also where space is allocated in clusters.

use std::fmt::Write;

/// The free space of one group, as the allocator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupReport {
    /// The group's number.
    pub number: u32,
    /// Blocks that can be allocated.
    pub free_blocks: u64,
    /// What is known about them.
    pub blocks: GroupBlocks,
    /// Whether the inode bitmap was found corrupt: no inode is allocated here.
    pub has_corrupt_inodes: bool,
}

/// What is known about the free blocks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupBlocks {
    /// The bitmap is in memory.
    Loaded(FreeRuns),
    /// The bitmap is not in memory: nothing but their number.
    NotLoaded,
    /// The bitmap was found corrupt: no block is allocated or freed here.
    Corrupt,
}

/// The free runs of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeRuns {
    /// The number of runs, each as long as can be.
    pub count: u32,
    /// The first free block, counted from the group's first.
    pub first: Option<u64>,
    /// How many runs of each power of two there are if the free blocks are divided into as few
    /// aligned runs as possible. The list has the orders of a whole group.
    pub by_order: Vec<u32>,
}

impl FreeRuns {
    /// The order of the largest of the aligned runs; `None` if nothing is free.
    #[must_use]
    pub fn largest_order(&self) -> Option<usize> {
        self.by_order.iter().rposition(|&count| count > 0)
    }
}

impl GroupReport {
    /// As a JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let (state, runs) = match &self.blocks {
            GroupBlocks::Loaded(runs) => ("loaded", runs.to_json()),
            GroupBlocks::NotLoaded => ("not-loaded", String::new()),
            GroupBlocks::Corrupt => ("corrupt", String::new()),
        };
        format!(
            "{{\"group\":{},\"state\":\"{state}\",\"inodes_corrupt\":{},\"free_blocks\":{}{runs}}}",
            self.number, self.has_corrupt_inodes, self.free_blocks
        )
    }
}

impl FreeRuns {
    /// As further keys of an object.
    fn to_json(&self) -> String {
        let mut text = format!(",\"free_runs\":{}", self.count);
        let mut add = |name, number: Option<u64>| {
            let number = number.map_or_else(|| "null".to_owned(), |number| number.to_string());
            write!(text, ",\"{name}\":{number}").expect("strings take everything");
        };
        add("first_free", self.first);
        add(
            "largest_order",
            self.largest_order().map(|order| order as u64),
        );
        let counts: Vec<String> = self.by_order.iter().map(u32::to_string).collect();
        format!("{text},\"runs_by_order\":[{}]", counts.join(","))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{FreeRuns, GroupBlocks, GroupReport};

    #[test]
    fn a_program_can_read_them() {
        let mut report = GroupReport {
            number: 7,
            free_blocks: 5,
            blocks: GroupBlocks::NotLoaded,
            has_corrupt_inodes: true,
        };
        let common = r#"{"group":7,"state":"not-loaded","inodes_corrupt":true,"free_blocks":5}"#;
        assert_eq!(report.to_json(), common);
        report.blocks = GroupBlocks::Corrupt;
        assert_eq!(report.to_json(), common.replace("not-loaded", "corrupt"));
        let mut runs = FreeRuns {
            count: 2,
            first: Some(3),
            by_order: vec![1, 0, 1, 0],
        };
        assert_eq!(runs.largest_order(), Some(2));
        report.blocks = GroupBlocks::Loaded(runs.clone());
        assert_eq!(
            report.to_json(),
            r#"{"group":7,"state":"loaded","inodes_corrupt":true,"free_blocks":5,"#.to_owned()
                + r#""free_runs":2,"first_free":3,"largest_order":2,"runs_by_order":[1,0,1,0]}"#
        );
        runs.first = None;
        runs.by_order = vec![0; 4];
        assert_eq!(
            runs.to_json(),
            r#","free_runs":2,"first_free":null,"largest_order":null,"runs_by_order":[0,0,0,0]"#
        );
    }
}
