//! Editing images from the command line: verbs, scripts, tars, and edits that are killed or
//! interrupted.

mod copies_out;
mod durable;
mod flags;
mod images;
mod interrupted;
mod kills;
mod links;
mod locks;
mod paths;
mod scripts;
mod tars;
mod tune;
mod values;
mod verbs;
