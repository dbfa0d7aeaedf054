//! A machine's processors, as far as this process may use them.

/// The capacity of a processor whose system names none: that of the fastest kind of core.
pub(crate) const FULL: u32 = 1024;

/// A processor that the system schedules threads on: a core, or one of the hardware threads of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogicalCpu {
    /// The system's number.
    pub number: usize,
    /// The physical core, named by the lowest number of its hardware threads.
    pub core: usize,
    /// The NUMA node.
    pub node: usize,
    /// The speed of the core, where 1024 is that of the fastest kind.
    pub capacity: u32,
}

/// The processors that this process may run on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuTopology {
    /// The allowed processors.
    pub cpus: Vec<LogicalCpu>,
    /// The time that control groups grant, in processors; `None` without a limit.
    pub quota: Option<f64>,
}

impl CpuTopology {
    /// A machine that is not known: this number of equal cores.
    pub fn unknown(cores: usize) -> Self {
        let cpu = |number| LogicalCpu { number, core: number, node: 0, capacity: FULL };
        Self { cpus: (0..cores.max(1)).map(cpu).collect(), quota: None }
    }
}
