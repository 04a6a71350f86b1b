//! What each mechanism can be set to, and the words for it.

/// How something that can be divided is: by what the machine has, or by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// As wide as the machine (and the image) suggest.
    Auto,
    /// This wide; at least 1.
    Fixed(u32),
}

/// Where large files look for space behind other large files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamGoals {
    /// One goal under the allocator's global lock.
    Locked,
    /// Goals chosen by inode number, without a lock: as many as there are cores but at most a
    /// quarter of the groups, or this many.
    Slots(Width),
    /// Each file its own; where it begins is one of more goals than cores, chosen by the core and a
    /// hash of the inode number.
    Spread,
    /// Each inode its own.
    Inode,
}

/// The setting of a mechanism that has a few values, each with its word.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$one:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$one])* $variant,)+ }

        impl Value for $name {
            fn read(text: &str) -> Option<Self> {
                match text {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn show(self) -> String {
                match self {
                    $(Self::$variant => $word.to_owned(),)+
                }
            }
        }
    };
}

/// What a switch can be set to.
pub(super) trait Value: Copy {
    fn read(text: &str) -> Option<Self>;
    fn show(self) -> String;
}

choice! {
    /// What a search for blocks does with a group that somebody holds.
    BusyGroups {
        /// It waits.
        Wait = "wait",
        /// It goes on to the next; only the last criterion waits.
        Skip = "skip",
    }
}

choice! {
    /// How groups are found by free space.
    GroupIndex {
        /// One list per order, each under a lock.
        Lists = "lists",
        /// One ordered map per order, read without locks and changed under one.
        Ordered = "ordered",
        /// Atomic bitmaps per order, without locks.
        Bitmaps = "bitmaps",
    }
}

choice! {
    /// How freed blocks wait for their transaction.
    Frees {
        /// Under the group's lock, then each extent onto one global list under its lock.
        Listed = "listed",
        /// Merged with their neighbours in the group first; only what is left goes on the list.
        Merged = "merged",
        /// Pushed onto the group's lock-free list; the next holder of the group folds them in. No
        /// global list.
        Deferred = "deferred",
    }
}

choice! {
    /// How inodes that recovery must finish are remembered.
    OrphanSlots {
        /// A chain behind the superblock, under one lock.
        List = "list",
        /// Slots of the orphan file, under one lock.
        Locked = "locked",
        /// Slots of the orphan file, by compare-and-swap.
        Lockless = "lockless",
        /// As `lockless`; a truncation keeps its slot for the next one of the same transaction, and
        /// one that needs a single transaction takes none.
        Remembered = "remembered",
    }
}

choice! {
    /// How an inode number is claimed.
    InodeBits {
        /// Found without the lock, taken under it; a thread that loses the race starts over.
        TestThenLock = "test-then-lock",
        /// The same, but after a lost race found and taken under the lock.
        FindUnderLock = "find-under-lock",
        /// By one atomic operation, without the lock.
        Atomic = "atomic",
    }
}

choice! {
    /// What of a directory a create or a removal locks.
    DirectoryLocks {
        /// All of it.
        Whole = "whole",
        /// The leaf that has the name, where it has an index.
        Leaves = "leaves",
    }
}

choice! {
    /// How a name is found in a leaf of a directory.
    LeafSearch {
        /// Record after record.
        Scan = "scan",
        /// By a byte of each record, which leaves that change have in memory.
        Fingerprints = "fingerprints",
    }
}

choice! {
    /// How equal attribute blocks find each other.
    AttributeCache {
        /// They do not: each inode has its own block.
        Off = "off",
        /// One cache of all volumes, under one lock.
        Global = "global",
        /// One cache per volume, with split locks.
        Split = "split",
        /// One lock per bucket; recency is kept separately.
        Buckets = "buckets",
        /// Without locks, in a table of fixed size; nothing shared is written on a hit.
        Sharded = "sharded",
    }
}

impl Value for Width {
    fn read(text: &str) -> Option<Self> {
        if text == "auto" {
            return Some(Self::Auto);
        }
        let width = text.parse().ok().filter(|width| (1..=4096).contains(width));
        width.map(Self::Fixed)
    }

    fn show(self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Fixed(width) => width.to_string(),
        }
    }
}

impl Width {
    /// The width, where the machine suggests `auto`.
    #[must_use]
    pub fn or(self, auto: usize) -> usize {
        match self {
            Self::Auto => auto,
            Self::Fixed(width) => width as usize,
        }
    }
}

impl Value for StreamGoals {
    fn read(text: &str) -> Option<Self> {
        match text {
            "locked" => Some(Self::Locked),
            "inode" => Some(Self::Inode),
            "spread" => Some(Self::Spread),
            _ => Width::read(text).map(Self::Slots),
        }
    }

    fn show(self) -> String {
        match self {
            Self::Locked => "locked".to_owned(),
            Self::Inode => "inode".to_owned(),
            Self::Spread => "spread".to_owned(),
            Self::Slots(width) => width.show(),
        }
    }
}

impl Value for bool {
    fn read(text: &str) -> Option<Self> {
        match text {
            "1" | "on" => Some(true),
            "0" | "off" => Some(false),
            _ => None,
        }
    }

    fn show(self) -> String {
        if self { "1" } else { "0" }.to_owned()
    }
}
