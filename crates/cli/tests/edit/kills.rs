//! Edits that are killed at a random moment: each is made or not made.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{has, run, succeed};
use crate::images::{cat, image, on};

/// A number from the seed that the environment gives, or another one each time.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("PEXT4_SEED").ok();
    let given = given.and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("PEXT4_SEED={seed}");
    seed
}

fn kill_at_random(way: &str) {
    let place = image("64M");
    let tree = place.point.join("tree");
    fs::create_dir(&tree).expect("a fresh place");
    for number in 0..400 {
        fs::write(tree.join(number.to_string()), vec![1; 20_000]).expect("there is room");
    }
    let script = place.point.join("script");
    let text = format!("put '{}' /new\nrm -r /old\n", tree.display());
    fs::write(&script, text).expect("a fresh place");
    succeed(&mut on(&place, "mkdir", &["/old"]));
    let original = fs::read(&place.image).expect("readable");
    let mut random = seed();
    let mut seen = [0; 2];
    for _ in 0..12 {
        fs::write(&place.image, &original).expect("there is room");
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mut child = on(&place, "edit", &["-q", "--by", way, "-f"])
            .arg(&script)
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis((random >> 33) % 160));
        // It may have ended by itself.
        let _ = child.kill();
        let ended = child.wait().expect("it ends");
        assert!(ended.success() || ended.signal().is_some(), "{ended}");
        if has("e2fsck") {
            let told = run(Command::new("e2fsck").arg("-fy").arg(&place.image));
            assert!(matches!(told.status.code(), Some(0 | 1)), "{told:?}");
        }
        let names = succeed(&mut on(&place, "ls", &["/"]));
        let (old, new) = (names.contains("old"), names.contains("new"));
        assert_ne!(old, new, "one of them: {names}");
        if new {
            assert_eq!(cat(&place, "/new/399").len(), 20_000);
        }
        seen[usize::from(new)] += 1;
        place.check();
    }
    println!("{way}: {seen:?} old and new");
    // A leftover clone beside the image does not matter.
    succeed(&mut on(&place, "touch", &["--by", way, "/last"]));
    let directory = place.image.parent().unwrap_or(Path::new("/"));
    let left = fs::read_dir(directory).expect("there").count();
    assert_eq!(left, 2, "the image and the directory beside it");
}

#[test]
fn a_killed_edit_is_made_or_not_by_the_journal() {
    kill_at_random("journal");
}

#[test]
fn a_killed_edit_is_made_or_not_by_a_clone() {
    kill_at_random("clone");
}
