//! The replay of a journal.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pext4_testkit::fuzz::recovery(data));
