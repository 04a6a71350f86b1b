//! The list of all workloads; a workload that is not in it is not available.

use super::fxmark::block::Block;
use super::fxmark::lookup::Lookup;
use super::fxmark::rename::Rename;
use super::fxmark::{self, Sharing};
use super::mdtest::Mdtest;
use super::stress_orphan::StressOrphan;
use super::{About, Workload, aim7_mix, control, falloc_append, fallocate2, xattr_share};

/// Every workload, in the order in which they are listed.
pub static ALL: &[&dyn Workload] = &[
    &fallocate2::Fallocate2,
    &falloc_append::FallocAppend,
    &StressOrphan {
        about: stress_orphan(
            "stress-orphan",
            "truncate a file by one byte; at 0 write 4 KiB again",
        ),
        unlinked: false,
    },
    &StressOrphan {
        about: stress_orphan(
            "stress-orphan-unlinked",
            "truncate an open file without a name by one byte; at 0 write 4 KiB again",
        ),
        unlinked: true,
    },
    &mdtest(
        "mdtest",
        "create, later remove, an empty file in a directory of the task's own",
        Sharing::Low,
    ),
    &mdtest(
        "mdtest-shared",
        "create, later remove, an empty file in one directory for all",
        Sharing::Medium,
    ),
    &xattr_share::XattrShare,
    &aim7_mix::Aim7Mix,
    &create(
        "MWCL",
        "create an empty file in a directory of the task's own",
        Sharing::Low,
    ),
    &create(
        "MWCM",
        "create an empty file in one directory for all",
        Sharing::Medium,
    ),
    &unlink(
        "MWUL",
        "remove an empty file from a directory of the task's own",
        Sharing::Low,
    ),
    &unlink(
        "MWUM",
        "remove an empty file from one directory for all",
        Sharing::Medium,
    ),
    &Rename {
        about: fxmark("MWRL", "rename a file within the task's own directory"),
        sharing: Sharing::Low,
    },
    &Rename {
        about: fxmark(
            "MWRM",
            "move a file between the task's own directory and one for all",
        ),
        sharing: Sharing::Medium,
    },
    &lookup(
        "MRPL",
        "look up a path of five directories of the task's own",
        Sharing::Low,
    ),
    &lookup(
        "MRPM",
        "look up a random one of 16 paths of five directories",
        Sharing::Medium,
    ),
    &lookup(
        "MRPH",
        "look up the same path of five directories as all",
        Sharing::High,
    ),
    &fxmark::append::Append,
    &write(
        "DWOL",
        "overwrite 4 KiB of a file of the task's own",
        Sharing::Low,
    ),
    &write(
        "DWOM",
        "overwrite the task's own 4 KiB of a file that all share",
        Sharing::Medium,
    ),
    &fxmark::sync::Sync,
    &read(
        "DRBL",
        "read 4 KiB of a file of the task's own",
        Sharing::Low,
    ),
    &read(
        "DRBM",
        "read the task's own 4 KiB of a file that all share",
        Sharing::Medium,
    ),
    &read(
        "DRBH",
        "read the same 4 KiB of a file as all",
        Sharing::High,
    ),
    &control::Control,
];

const fn stress_orphan(name: &'static str, operation: &'static str) -> About {
    About {
        name,
        source: "stress-orphan; orphan file, 2021",
        operation,
    }
}

const fn mdtest(name: &'static str, operation: &'static str, sharing: Sharing) -> Mdtest {
    let source = "mdtest -F -C -r; new inode, 2017";
    let about = About {
        name,
        source,
        operation,
    };
    Mdtest {
        about,
        parts: &["creation", "removal"],
        sharing,
    }
}

const fn fxmark(name: &'static str, operation: &'static str) -> About {
    About {
        name,
        source: fxmark::SOURCE,
        operation,
    }
}

const fn create(name: &'static str, operation: &'static str, sharing: Sharing) -> Mdtest {
    Mdtest {
        about: fxmark(name, operation),
        parts: &["creation", "clearing"],
        sharing,
    }
}

const fn unlink(name: &'static str, operation: &'static str, sharing: Sharing) -> Mdtest {
    Mdtest {
        about: fxmark(name, operation),
        parts: &["filling", "unlinking"],
        sharing,
    }
}

const fn lookup(name: &'static str, operation: &'static str, sharing: Sharing) -> Lookup {
    Lookup {
        about: fxmark(name, operation),
        sharing,
    }
}

const fn write(name: &'static str, operation: &'static str, sharing: Sharing) -> Block {
    Block {
        about: fxmark(name, operation),
        writes: true,
        sharing,
    }
}

const fn read(name: &'static str, operation: &'static str, sharing: Sharing) -> Block {
    Block {
        about: fxmark(name, operation),
        writes: false,
        sharing,
    }
}
