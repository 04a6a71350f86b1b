//! The `pext4` command.

fn main() {}
