//! A process that enters a sandbox and tries one thing. Its exit code is the error's number, 0 where the attempt
//! succeeds, and 255 where it could not be tried. Only tests run it.
//!
//! `model-boss-sandbox-probe KIND ALLOWED ATTEMPT [ARGUMENT]`

use std::process::ExitCode;

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::from(255)
}

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match linux::run(&words) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            error.raw_os_error().and_then(|number| u8::try_from(number).ok()).map_or(254.into(), ExitCode::from)
        }
        None => ExitCode::from(255),
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{self, File};
    use std::io::{self, Read};
    use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;
    use std::thread;

    use model_boss_protocol::SandboxMode;
    use model_boss_sandbox::{AllowedFiles, ProcessKind, confine};
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::{Pid, getppid};

    pub(crate) fn run(words: &[&str]) -> Option<io::Result<()>> {
        let [kind, allowed, attempt, rest @ ..] = words else { return None };
        let kind = match *kind {
            "worker" => Some(ProcessKind::Worker),
            "text-host" => Some(ProcessKind::TextHost),
            // The same attempt without a sandbox.
            "outside" => None,
            _ => return None,
        };
        let argument = rest.first().copied().unwrap_or_default();
        // A listening socket is what a worker has before it confines itself.
        let own = TcpListener::bind("127.0.0.1:0").ok()?;
        let mut files = AllowedFiles::default();
        files.read(Path::new(allowed));
        if let Some(kind) = kind {
            let state = confine(SandboxMode::Auto, None, kind, &files).ok()?;
            state.is_whole().then_some(())?;
        }
        Some(tried(attempt, argument, &own))
    }

    fn tried(attempt: &str, argument: &str, own: &TcpListener) -> io::Result<()> {
        match attempt {
            "nothing" => Ok(()),
            "read" => File::open(argument)?.read(&mut [0; 1]).map(drop),
            "list" => fs::read_dir(argument).map(drop),
            "write" => File::options().write(true).open(argument).map(drop),
            "create" => File::create_new(argument).map(drop),
            "remove" => fs::remove_file(argument),
            "rename" => fs::rename(argument, format!("{argument}.moved")),
            "mode" => fs::set_permissions(argument, fs::metadata(argument)?.permissions()),
            "connect" => TcpStream::connect(argument).map(drop),
            "bind" => TcpListener::bind("127.0.0.1:0").map(drop),
            "udp" => UdpSocket::bind("127.0.0.1:0").map(drop),
            "unix" => UnixStream::connect(argument).map(drop),
            "abstract" => UnixStream::connect_addr(&SocketAddr::from_abstract_name(argument)?).map(drop),
            "pair" => UnixStream::pair().map(drop),
            "accept" => {
                own.set_nonblocking(true)?;
                match own.accept() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                    other => other.map(drop),
                }
            }
            "fastopen" => connect_by_message(own, argument),
            "exec" => Err(Command::new("/bin/sh").arg("-c").arg(":").exec()),
            "spawn" => Command::new("/bin/sh").arg("-c").arg(":").status().map(drop),
            "thread" => thread::Builder::new().spawn(|| ())?.join().map_err(|_| io::ErrorKind::Other.into()),
            "kill" => Ok(kill(getppid(), Signal::SIGKILL)?),
            "signal" => Ok(kill(getppid(), Signal::SIGWINCH)?),
            "attach" => Ok(nix::sys::ptrace::attach(getppid())?),
            "peek" => peek(getppid()),
            "memory" => File::open(format!("/proc/{}/mem", getppid())).map(drop),
            "executable" => memory_as_code(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Turns the listening socket into one that connects: once shut down, a message with an address opens it again.
    fn connect_by_message(own: &TcpListener, address: &str) -> io::Result<()> {
        use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg_addr, shutdown};
        shutdown(own, Shutdown::Both)?;
        let address: SocketAddrV4 = address.parse().map_err(io::Error::other)?;
        let flags = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.cast_unsigned());
        sendmsg_addr(own, &address, &[io::IoSlice::new(b"x")], &mut SendAncillaryBuffer::default(), flags)?;
        Ok(())
    }

    /// Reads another process's memory.
    fn peek(pid: Pid) -> io::Result<()> {
        let mut bytes = [0; 1];
        let local = &mut [io::IoSliceMut::new(&mut bytes)];
        let remote = [nix::sys::uio::RemoteIoVec { base: 0x1000, len: 1 }];
        nix::sys::uio::process_vm_readv(pid, local, &remote)?;
        Ok(())
    }

    /// Asks for memory that may be run.
    #[allow(unsafe_code)]
    fn memory_as_code() -> io::Result<()> {
        let (read, private) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping, of which no byte is used.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, read, private, -1, 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
