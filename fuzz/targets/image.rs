//! A sound image changed as the bytes say, mounted, walked and written to.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pext4_testkit::fuzz::image(data));
