//! `pext4 build` from the command line: every kind of source, the options, refusals, and failures.
//! Images are checked by e2fsck and read back by the other commands.

mod archives;
mod durable;
mod extents;
mod failures;
mod fakeroot;
mod images;
mod layouts;
mod options;
mod pack;
mod packed;
mod sources;
