//! seccomp: the system calls that a process needs. Any other fails with ENOSYS, as on a kernel that does not have it.

use std::collections::BTreeMap;

use libc::{c_long, c_ulong};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::process_kind::ProcessKind;

/// The rules of each call: one of them has to hold, and a call without rules is allowed as it is.
type CallRules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Calls of both kinds of processes whose arguments do not matter.
const OF_BOTH: &[c_long] = &[
    // Bytes of open files and streams.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    // Facts about files; Landlock does not hide them.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    // Threads and their waits.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpriority,
    libc::SYS_getcpu,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    // Signals of its own.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    // Time, chance, and facts about the system.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
];

/// The same by older numbers, which other architectures do not have.
#[cfg(target_arch = "x86_64")]
const OF_BOTH_HERE: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_dup2,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OF_BOTH_HERE: &[c_long] = &[];

/// Further calls of a worker: its event loop, and connections that its socket accepts.
const OF_WORKERS: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
];
#[cfg(target_arch = "x86_64")]
const OF_WORKERS_HERE: &[c_long] = &[libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OF_WORKERS_HERE: &[c_long] = &[];

/// Further calls of a text host: the end of its children, and limits on itself.
const OF_TEXT_HOSTS: &[c_long] = &[libc::SYS_wait4, libc::SYS_setitimer];
#[cfg(target_arch = "x86_64")]
const OF_TEXT_HOSTS_HERE: &[c_long] = &[libc::SYS_alarm, libc::SYS_fork, libc::SYS_setrlimit];
#[cfg(not(target_arch = "x86_64"))]
const OF_TEXT_HOSTS_HERE: &[c_long] = &[];

/// Calls that no program of others needs here: they look into other processes, or change the system.
const FORBIDDEN: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_io_uring_setup,
    // Its flags are in memory, where no filter sees them; the C library uses the older call then.
    libc::SYS_clone3,
];

/// Flags of `clone` that make namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The option of `prctl` by which the C library names its memory. Older kernels refuse it, too.
const NAME_MEMORY: i32 = 0x5356_4d41;

/// Limits the calling thread, and those that it starts, to the calls of its kind; or the reason why not.
pub(crate) fn limit(kind: ProcessKind) -> Result<(), String> {
    let program = program(kind).map_err(|error| format!("seccomp has no filter for this machine: {error}"))?;
    seccompiler::apply_filter(&program).map_err(|error| format!("seccomp refuses: {error}"))
}

fn program(kind: ProcessKind) -> Result<BpfProgram, seccompiler::BackendError> {
    let unknown = SeccompAction::Errno(u32::try_from(libc::ENOSYS).unwrap_or_default());
    let (rules, others, listed) = match kind {
        ProcessKind::Program => (forbidden()?, SeccompAction::Allow, unknown),
        kind => (rules(kind)?, unknown, SeccompAction::Allow),
    };
    SeccompFilter::new(rules, others, listed, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// The calls that a program of others may not make, sockets of a network among them.
fn forbidden() -> Result<CallRules, seccompiler::BackendError> {
    let mut rules = CallRules::new();
    for call in FORBIDDEN {
        rules.insert(*call, Vec::new());
    }
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, bits(libc::AF_UNIX))?;
    only(&mut rules, libc::SYS_socket, [other])?;
    for flag in (0..i32::BITS).map(|bit| 1 << bit).filter(|flag: &i32| NAMESPACES & flag != 0) {
        only(&mut rules, libc::SYS_clone, [masked(0, flag, flag)?])?;
    }
    Ok(rules)
}

fn rules(kind: ProcessKind) -> Result<CallRules, seccompiler::BackendError> {
    let mut rules = CallRules::new();
    let (own, own_here) = match kind {
        ProcessKind::Worker => (OF_WORKERS, OF_WORKERS_HERE),
        ProcessKind::TextHost => (OF_TEXT_HOSTS, OF_TEXT_HOSTS_HERE),
        ProcessKind::Program => return forbidden(),
    };
    for call in [OF_BOTH, OF_BOTH_HERE, own, own_here].concat() {
        rules.insert(call, Vec::new());
    }
    // No memory becomes code: a fault in a parser cannot bring its own.
    only(&mut rules, libc::SYS_mmap, [masked(2, libc::PROT_EXEC, 0)?])?;
    only(&mut rules, libc::SYS_mprotect, [masked(2, libc::PROT_EXEC, 0)?])?;
    // A stream has its other end, so no address is needed. With this flag a message would connect its socket.
    only(&mut rules, libc::SYS_sendto, [wide(4, 0)?, masked(3, libc::MSG_FASTOPEN, 0)?])?;
    only(&mut rules, libc::SYS_sendmsg, [masked(2, libc::MSG_FASTOPEN, 0)?])?;
    // No descriptor is made to send signals to others.
    for command in [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD, libc::F_DUPFD_CLOEXEC] {
        only(&mut rules, libc::SYS_fcntl, [equal(1, command)?])?;
    }
    // A thread sends itself the signal by which the process aborts.
    only(&mut rules, libc::SYS_tgkill, [equal(2, libc::SIGABRT)?])?;
    // Requests about whether something is a terminal, and about waiting. No other changes a device.
    for request in [libc::FIONBIO, libc::FIOCLEX, libc::TCGETS] {
        let request = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request & 0xffff_ffff)?;
        only(&mut rules, libc::SYS_ioctl, [request])?;
    }
    for option in [libc::PR_SET_NAME, NAME_MEMORY] {
        only(&mut rules, libc::SYS_prctl, [equal(0, option)?])?;
    }
    let thread = libc::CLONE_THREAD | NAMESPACES;
    only(&mut rules, libc::SYS_clone, [masked(0, thread, libc::CLONE_THREAD)?])?;
    only(&mut rules, libc::SYS_prlimit64, [equal(0, 0)?])?;
    match kind {
        ProcessKind::Worker => {
            only(&mut rules, libc::SYS_openat, [])?;
            #[cfg(target_arch = "x86_64")]
            only(&mut rules, libc::SYS_open, [])?;
            // Pairs of streams go to its text processes; there is no way to a socket of the network.
            only(&mut rules, libc::SYS_socketpair, [equal(0, libc::AF_UNIX)?])?;
            // Other options run filters in the kernel, or give a socket other ways to connect.
            let socket = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].map(|option| (libc::SOL_SOCKET, option));
            for (level, option) in socket.into_iter().chain([(libc::IPPROTO_TCP, libc::TCP_NODELAY)]) {
                only(&mut rules, libc::SYS_setsockopt, [equal(1, level)?, equal(2, option)?])?;
            }
            // Threads are placed on cores, and step back behind those of other models.
            only(&mut rules, libc::SYS_sched_setaffinity, [equal(0, 0)?])?;
            only(&mut rules, libc::SYS_setpriority, [equal(0, 0)?, equal(1, 0)?])?;
        }
        ProcessKind::TextHost => {
            let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
            only(&mut rules, libc::SYS_openat, [masked(2, writes, 0)?])?;
            #[cfg(target_arch = "x86_64")]
            only(&mut rules, libc::SYS_open, [masked(1, writes, 0)?])?;
            let shared = NAMESPACES | libc::CLONE_VM | libc::CLONE_PTRACE | libc::CLONE_PARENT;
            only(&mut rules, libc::SYS_clone, [masked(0, shared, 0)?])?;
            only(&mut rules, libc::SYS_kill, [equal(1, libc::SIGKILL)?])?;
            only(&mut rules, libc::SYS_prctl, [equal(0, libc::PR_SET_PDEATHSIG)?])?;
        }
        ProcessKind::Program => {}
    }
    Ok(rules)
}

/// Allows a call where all of these conditions hold, beside those where it is allowed already.
fn only<const N: usize>(
    rules: &mut CallRules,
    call: c_long,
    conditions: [SeccompCondition; N],
) -> Result<(), seccompiler::BackendError> {
    let allowed = rules.entry(call).or_default();
    if N > 0 {
        allowed.push(SeccompRule::new(conditions.into())?);
    }
    Ok(())
}

fn equal(argument: u8, value: i32) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, bits(value))
}

fn wide(argument: u8, value: c_ulong) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value)
}

/// Of these bits, exactly those of the value are set.
fn masked(argument: u8, mask: i32, value: i32) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits(mask)), bits(value))
}

/// The bits of a number as the kernel's filters see it.
fn bits(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}
