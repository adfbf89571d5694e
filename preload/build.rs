//! Links the preload library so that it resolves everything at load time and is initialised first.

fn main() {
    // A symbol bound lazily would be resolved inside the first `malloc`, which resolving calls.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // Our fork handlers must run before everybody else's: they are registered by our constructor.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // What mimalloc commits bit by bit it does by this call: ours knows that from the program's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap=mprotect");
    println!("cargo:rerun-if-changed=build.rs");
}
