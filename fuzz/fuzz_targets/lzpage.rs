#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    pagetide_fuzz::by_name("lzpage")(bytes);
});
