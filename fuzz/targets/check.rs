//! A sound image changed as the bytes say, and checked.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pext4_testkit::fuzz::check(data));
