//! Power cuts at any write.

use std::time::Duration;

use pext4_testkit::campaign::Stage;
use pext4_testkit::crash::window::Budget;
use pext4_testkit::crash::{self, recording::Recording};
use pext4_testkit::effort::{effort, seeds, settings};
use pext4_testkit::op::generate::Profile;
use pext4_testkit::op::text;
use pext4_testkit::oracle::format::{Features, Format};

fn budget(total: usize) -> Budget {
    let effort = effort() as usize;
    Budget {
        exhaust: 4 + effort.min(6),
        window: 24 * effort,
        total: total * effort,
    }
}

/// A stage that commits every few milliseconds, so that cuts fall between operations without a
/// sync.
fn stage(block_size: u32, features: Features) -> Stage {
    let format = Format::new(16 << 20, block_size, features)
        .inodes(1024)
        .with(&["-J", "size=4"]);
    let stage = Stage::new(format).and_then(Stage::soiled);
    let mut stage = stage.expect("mke2fs makes it");
    stage.options.commit_interval = Duration::from_millis(20);
    stage
}

#[test]
fn random_runs_with_an_orphan_file() {
    for seed in seeds(2) {
        crash::run(
            &stage(1024, Features::Upstream),
            "crash",
            Profile::crashes(),
            seed,
            150,
            budget(120),
        );
    }
}

#[test]
fn random_runs_with_an_orphan_list() {
    for seed in seeds(2) {
        crash::run(
            &stage(4096, Features::Debian12),
            "crash",
            Profile::crashes(),
            seed,
            150,
            budget(120),
        );
    }
}

/// Inline data, and files that outgrow it.
#[test]
fn random_runs_with_inline_content() {
    for seed in seeds(2) {
        let stage = stage(1024, Features::Inline);
        crash::run(
            &stage,
            "crashinline",
            Profile::crashes(),
            seed,
            150,
            budget(120),
        );
    }
}

/// Attribute values with inodes of their own, also where usage is counted; clusters of several
/// blocks.
#[test]
fn random_runs_with_values_in_inodes() {
    let profile = Profile {
        xattrs: 40,
        ..Profile::crashes()
    };
    for seed in seeds(2) {
        for (features, name) in [
            (Features::Values, "values"),
            (Features::Quotas, "quotas"),
            (Features::Clusters, "clusters"),
        ] {
            let stage = stage(1024, features);
            let name = format!("crash{name}");
            crash::run(&stage, &name, profile, seed, 150, budget(120));
        }
    }
}

#[test]
fn random_runs_of_names() {
    let profile = Profile {
        names: 600,
        namespace: 80,
        files: 4,
        ..Profile::crashes()
    };
    for seed in seeds(1) {
        crash::run(
            &stage(1024, Features::Narrow),
            "crashnames",
            profile,
            seed,
            300,
            budget(80),
        );
    }
}

/// Space that became free is used again at once, commits are forced, and maps grow without it.
#[test]
fn random_runs_on_a_full_volume() {
    let profile = Profile {
        namespace: 12,
        files: 90,
        largest: 3 << 20,
        longest_write: 200 << 10,
        ..Profile::crashes()
    };
    for features in [Features::Upstream, Features::Debian12, Features::Ext3] {
        let format = Format::new(6 << 20, 1024, features).inodes(128);
        let stage = Stage::new(format.with(&["-J", "size=1"])).and_then(Stage::soiled);
        let mut stage = stage.expect("mke2fs makes it").filling();
        stage.options.commit_interval = Duration::from_millis(20);
        for seed in seeds(1) {
            crash::run(&stage, "crashfull", profile, seed, 200, budget(80));
        }
    }
}

/// Blocks are evicted and read again between their change and their writeback.
#[test]
fn random_runs_with_a_cache_that_is_too_small() {
    let mut stage = stage(1024, Features::Upstream);
    stage.options.cache_size = 128 << 10;
    let profile = Profile {
        names: 600,
        ..Profile::crashes()
    };
    for seed in seeds(1) {
        crash::run(&stage, "crashcache", profile, seed, 400, budget(80));
    }
}

/// A log that is smaller than the run, so that it wraps and its tail moves.
#[test]
fn a_log_that_wraps() {
    let format = Format::new(16 << 20, 1024, Features::Upstream).with(&["-J", "size=1"]);
    let stage = Stage::new(format.inodes(1024)).and_then(Stage::soiled);
    let stage = stage.expect("mke2fs makes it");
    let profile = Profile {
        syncs: 25,
        ..Profile::crashes()
    };
    for seed in seeds(1) {
        crash::run(&stage, "crashwrap", profile, seed, 500, budget(80));
    }
}

/// Threads in directories of their own, in every setting of the scaling mechanisms: whatever order
/// the journal gave them, the state of each thread's directory is one that it went through.
#[test]
fn several_threads() {
    let profile = Profile {
        syncs: 4,
        ..Profile::crashes()
    };
    let stages = [
        stage(1024, Features::Upstream),
        stage(4096, Features::Debian12),
    ];
    for seed in seeds(settings()) {
        let stage = &stages[usize::from(seed.is_multiple_of(2))];
        let stage = stage.with_setting_of(seed);
        let recording = Recording::threads(&stage, profile, seed, 8, 30);
        let recording = recording.unwrap_or_else(|text| panic!("seed {seed}: {text}"));
        let report = crash::examine(&recording, "crashthreads", seed, budget(24));
        report.unwrap_or_else(|text| panic!("seed {seed}, {}: {text}", stage.describe()));
    }
}

fn story(name: &str, operations: &str) {
    let formats = [(1024, Features::Upstream), (4096, Features::Debian12)];
    story_on(&formats, name, operations);
}

fn story_on(formats: &[(u32, Features)], name: &str, operations: &str) {
    let ops = text::parse(operations).expect("operations");
    for &(block_size, features) in formats {
        let recording = Recording::replay(&stage(block_size, features), &ops);
        let recording = recording.unwrap_or_else(|text| panic!("{name}: {text}"));
        let report = crash::examine(&recording, name, 1, budget(60));
        report.unwrap_or_else(|text| panic!("{name}, {features:?}: {text}"));
    }
}

/// Truncated data must not reappear when the file grows again.
#[test]
fn a_tail_that_was_cut_stays_away() {
    story(
        "tail",
        "create /a 644 0 0\nwrite /a 0 6000 1\nsync\ntruncate /a 1000\nwrite /a 9000 100 2\nsync\n\
         truncate /a 500\ntruncate /a 8000\nfsync /a\nallocate /a punch 100 6000\nfsync /a\n",
    );
}

/// What a truncation cuts off inside a cluster is whole until the truncation is durable, although
/// the rest of the cluster is the file's own to fill.
#[test]
fn blocks_that_were_cut_off_in_a_cluster_are_not_filled_too_soon() {
    story_on(
        &[(1024, Features::Clusters), (4096, Features::Clusters)],
        "cluster",
        // Ends of blocks, or zeroing the rest of the last one would wait already.
        "create /a 644 0 0\nwrite /a 0 32768 1\nsync\ntruncate /a 5120\nwrite /a 6200 100 2\nfsync /a\n\
         write /a 0 49152 3\nsync\ntruncate /a 36864\nallocate /a keep 36864 12288\n\
         write /a 41000 500 4\nsync\nwrite /a 0 32768 5\nsync\ntruncate /a 20480\nwrite /a 24600 9 6\nsync\n",
    );
}

/// Blocks that move from one file to another never show the old bytes or those of a directory.
#[test]
fn freed_blocks_do_not_show_old_bytes() {
    story(
        "reuse",
        "mkdir /d 755 0 0\ncreate /d/a 644 0 0\nwrite /d/a 0 300000 1\nsync\nunlink /d/a\nrmdir /d\n\
         create /b 644 0 0\nwrite /b 0 300000 2\nsync\nunlink /b\nmkdir /e 755 0 0\n\
         create /e/c 644 0 0\nwrite /e/c 0 290000 3\nfsync /e/c\nallocate /e/c keep 300000 400000\nsync\n",
    );
}

/// A hole that was punched in parts of blocks changes no mapping, nor does what fills it: fdatasync
/// makes no names durable then.
#[test]
fn parts_of_blocks_that_are_punched_and_filled_stay_mapped() {
    story(
        "parts",
        "create /a 644 0 0\nwrite /a 0 18410 1\nallocate /a punch 12794 1337\nsync\nlink /a /b\n\
         write /a 11264 6191 2\nallocate /a keep 12500 1700\nfdatasync /a\nmkdir /c 755 0 0\nsync\n",
    );
}

/// Files without a name are gone after a crash, and their space is free.
#[test]
fn files_without_names_do_not_survive() {
    story(
        "unnamed",
        "create /a 644 0 0\nwrite /a 0 100000 1\ncreate /b 644 0 0\nwrite /b 0 5000 2\nsync\n\
         hold /a #0\nhold /b #1\nunlink /a\nfsync /b\nunlink /b\ntmpfile / 600 0 0 #2\nwrite #2 0 50000 3\n\
         sync\ntruncate #0 20000\nsync\nrelease #0\nsync\nlink #2 /c\nsync\nrelease #1\nrelease #2\nsync\n",
    );
}

/// A rename over a file: either the old or the new content, never a third state.
#[test]
fn a_rename_replaces_whole_files() {
    story(
        "replace",
        "create /a 644 0 0\nwrite /a 0 5000 1\nsync\ncreate /new 644 0 0\nwrite /new 0 7000 2\nfsync /new\n\
         rename /new /a replace\nfsync /a\ncreate /new 600 0 0\nwrite /new 0 100 3\nrename /new /a exchange\n\
         unlink /new\nsync\n",
    );
}
