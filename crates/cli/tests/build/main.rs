//! `pext4 build` from the command line: what every kind of source becomes, what the options change,
//! what is refused, and what a failure leaves. Images are judged by e2fsck and read back by the
//! other commands.

mod archives;
#[path = "../common/mod.rs"]
mod common;
mod failures;
mod images;
mod layouts;
mod options;
mod pack;
mod sources;
