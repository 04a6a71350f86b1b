//! Edits by the library, on whole images.
//!
//! One program, so that it links once; each module has a topic of its own.

mod common;

mod abandoned;
mod attributes;
mod both;
mod crash;
mod damaged_maps;
mod deep;
mod deep_names;
mod ends_of_paths;
mod get;
mod large_directories;
mod layers;
mod lists;
mod paths_of_tars;
mod refusals;
mod refused_tars;
mod shared_blocks;
mod shared_names;
mod tars;
mod together;
mod tune;
mod verbs;
mod without_journal;
