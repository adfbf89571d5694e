//! x86-64, with glibc.

use std::arch::{asm, naked_asm};
use std::ffi::{c_int, c_void};

/// Bytes from a thread's pointer on that its block takes: more than glibc's `struct pthread` (2.3 KiB).
pub(crate) const BLOCK_HEAD: usize = 2560;
/// Words of a block's head, by their offsets, that hold the block's own address.
pub(crate) const BLOCK_ITSELF: [usize; 2] = [0x00, 0x10];
/// Words of a block's head, by their offsets, that are the same in all threads of a process: secrets of the C library.
pub(crate) const BLOCK_SECRETS: [usize; 2] = [0x28, 0x30];

/// The calling thread's pointer.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 the first word of the thread control block is its own address.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

/// Makes a system call, with no function of the C library between. Returns its result, or the number of its error.
///
/// ```
/// // SAFETY: no memory is passed.
/// let pid = unsafe { pagetide_sys::arch::system_call(libc::SYS_getpid, [0; 6]) };
/// assert_eq!(pid, Ok(std::process::id() as usize));
/// ```
///
/// # Errors
/// The errno of the system call.
///
/// # Safety
/// As for the call.
#[inline]
pub unsafe fn system_call(number: i64, arguments: [usize; 6]) -> Result<usize, c_int> {
    let result: isize;
    // SAFETY: the caller vouches for the call and its arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0], in("rsi") arguments[1], in("rdx") arguments[2],
            in("r10") arguments[3], in("r8") arguments[4], in("r9") arguments[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(-result as c_int) } else { Ok(result as usize) }
}

/// Makes a thread by `clone(2)`, which calls `enter` with `argument`.
///
/// # Errors
/// The errno of the system call.
///
/// # Safety
/// - Below `stack`, which is a multiple of 16, there must be room that is nobody else's.
/// - At `pointer` there must be a thread block that is nobody else's.
/// - `flags` must say that it is a thread of this process; what they say of `number` must fit a word that stays.
/// - `enter` must take `argument`, and must not return.
pub(crate) unsafe fn clone_thread(
    flags: c_int,
    stack: usize,
    pointer: usize,
    number: *mut u32,
    enter: extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> Result<(), c_int> {
    let result: isize;
    // SAFETY: the new thread comes back from the call with our registers, but for the stack's, and goes to `enter`,
    // which does not return; nothing of our frame is used there. In the calling thread it is a system call that writes
    // one word.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as usize,
            in("rsi") stack,
            in("rdx") number,
            in("r10") number,
            in("r8") pointer,
            in("r12") argument,
            in("r13") enter,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if result < 0 { Err(-result as c_int) } else { Ok(()) }
}

/// Ends the calling thread, and no other.
///
/// # Safety
/// Nothing that lies on its stack may be in use.
pub(crate) unsafe fn exit_thread() -> ! {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("syscall", in("rax") libc::SYS_exit, in("rdi") 0, options(noreturn, nostack));
    }
}

/// The function to which a handler of a signal returns, as the kernel wants one (SA_RESTORER).
#[unsafe(naked)]
pub(crate) extern "C" fn return_from_signal() {
    naked_asm!("mov eax, {call}", "syscall", call = const libc::SYS_rt_sigreturn)
}

/// Runs a function on another stack, and ends the process with its result.
///
/// # Safety
/// `stack` must be the end of a stack that nobody else uses, and `function` must take `argument`.
pub unsafe fn run_on_stack(
    stack: *mut c_void,
    function: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> ! {
    // SAFETY: nothing of the old stack is used any more, and the function returns to the next instruction. The C
    // library ends the thread alone, which is the process's only one; here it has those of the engine too.
    unsafe {
        asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {function}",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            stack = in(reg) stack.addr() & !15,
            function = in(reg) function,
            in("rdi") argument,
            exit = const libc::SYS_exit_group,
            options(noreturn),
        )
    }
}

/// Returns whether the processor has instructions for AES, and whether it has those for several blocks at a time.
pub fn aes_instructions() -> (bool, bool) {
    (std::arch::is_x86_feature_detected!("aes"), std::arch::is_x86_feature_detected!("vaes"))
}

/// The body of a naked function of two arguments: goes on, with the same arguments and caller, at the function that
/// `$before`, an `extern "C" fn() -> *mut c_void`, returns.
#[macro_export]
macro_rules! jump_to_result_of {
    ($before:path) => {
        ::std::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {before}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "jmp rax",
            before = sym $before,
        )
    };
}

/// The body of a naked function of three arguments: goes on, with the same caller, at the function that `$before`, an
/// `extern "C" fn(first, second, target: *mut [usize; 2])`, writes to `target`, followed by the second argument that it
/// is to have. The first and third stay.
#[macro_export]
macro_rules! jump_to_target_of {
    ($before:path) => {
        ::std::arch::naked_asm!(
            "push rdi",
            "push rdx",
            "sub rsp, 24",
            "mov rdx, rsp",
            "call {before}",
            "mov rax, [rsp]",
            "mov rsi, [rsp + 8]",
            "add rsp, 24",
            "pop rdx",
            "pop rdi",
            "jmp rax",
            before = sym $before,
        )
    };
}

/// The body of a naked function whose arguments are listed in the call: calls `$from`, an `extern "C" fn(first,
/// array)`, and returns its result. The first argument is passed on; the others, of which five are in registers and the
/// rest lies above the return address, become one array: the registers are pushed where the return address was, which
/// waits below.
#[macro_export]
macro_rules! call_with_array {
    ($from:path) => {
        ::std::arch::naked_asm!(
            "pop rax",
            "push r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "push rax",
            "lea rsi, [rsp + 8]",
            // The stack is aligned as for any call: what was pushed is 48 bytes, less the 8 that were popped.
            "call {from}",
            "pop rcx",
            "add rsp, 40",
            "push rcx",
            "ret",
            from = sym $from,
        )
    };
}
