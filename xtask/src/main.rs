//! Longer campaigns and chores of the pext4 workspace: `cargo xtask`.

fn main() {}
