#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| _ = pagetide_fuzz::by_name("ticket")(bytes));
