//! The model against the kernel's ext4: what the tests require of pext4 must first hold for ext4.

use pext4_testkit::campaign;
use pext4_testkit::effort::{failures, scratch, seeds};
use pext4_testkit::model::Model;
use pext4_testkit::op::generate::Profile;
use pext4_testkit::op::text;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::oracle::mount::{Access, kernel_mount};

fn run(format: &Format, profile: Profile, seed: u64, count: usize) {
    let folder = scratch();
    let image = folder.path().join("image");
    format.make(&image).expect("mke2fs makes it");
    let Some(mount) = kernel_mount(&image, Access::ReadWrite, "kernel_model").expect("mountable")
    else {
        return;
    };
    let mut subject = mount.subject().expect("the mount can be opened");
    let mut model = Model::fresh(format.block_size);
    let (ops, result) = campaign::generate(&mut subject, &mut model, profile, seed, count);
    if let Err(wrong) = result {
        let path = failures().join(format!("failed-kernel-{seed}.ops"));
        std::fs::write(&path, text::print(&ops)).expect("the folder was made");
        panic!(
            "seed {seed}, {}: {wrong}\nkept in {}",
            format.describe(),
            path.display()
        );
    }
    drop(subject);
    mount.unmount().expect("nobody uses it");
    e2fsck(&image).expect("the kernel leaves it clean");
}

#[test]
fn the_model_does_what_the_kernel_does() {
    for seed in seeds(3) {
        run(
            &Format::new(64 << 20, 4096, Features::Debian12),
            Profile::everything(),
            seed,
            1500,
        );
    }
}

#[test]
fn the_model_does_what_the_kernel_does_with_small_blocks() {
    for seed in seeds(2) {
        let format = Format::new(64 << 20, 1024, Features::Debian12);
        run(&format, Profile::everything(), seed, 1000);
        run(&format, Profile::contents(), seed, 1000);
    }
}

#[test]
fn the_model_does_what_the_kernel_does_with_many_names() {
    for seed in seeds(1) {
        run(
            &Format::new(64 << 20, 1024, Features::Debian12),
            Profile::names(),
            seed,
            3000,
        );
    }
}
