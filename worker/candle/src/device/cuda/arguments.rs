//! The arguments of kernels, as the structs of `kernels/*.cuh` have them. Addresses are numbers.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

/// Matrices of a launch at most, as in `kernels/multiply.cuh`.
pub(super) const MATRICES: usize = 3;

/// A struct of numbers alone.
macro_rules! arguments {
    ($(struct $name:ident { $($field:ident: $kind:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(super) struct $name {
                $(pub(super) $field: $kind,)*
            }

            // SAFETY: plain numbers, and addresses as numbers, with the layout of the kernel's own struct.
            #[allow(unsafe_code)]
            unsafe impl DeviceRepr for $name {}
        )*
    };
}

arguments! {
    struct PlaceRows {
        query: u64,
        key: u64,
        value: u64,
        query_norm: u64,
        key_norm: u64,
        cos: u64,
        sin: u64,
        places: u64,
        query_out: u64,
        keys: u64,
        values: u64,
        query_eps: f32,
        key_eps: f32,
        scale: f32,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        value_dim: i32,
        planes: i32,
        first: i32,
        halves: i32,
        norm_behind: i32,
        room: i32,
    }

    struct AttendRows {
        query: u64,
        keys: u64,
        values: u64,
        sequence: u64,
        seen: u64,
        blocks: u64,
        sinks: u64,
        out: u64,
        partial: u64,
        softcap: f32,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        value_dim: i32,
        value_stride: i32,
        room: i32,
        table: i32,
        window: i32,
        splits: i32,
    }

    struct AttendPiece {
        query: u64,
        keys: u64,
        values: u64,
        blocks: u64,
        sinks: u64,
        out: u64,
        softcap: f32,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        value_dim: i32,
        value_stride: i32,
        room: i32,
        window: i32,
        first_row: i32,
        rows: i32,
        past: i32,
        stages: i32,
    }

    struct SoftenRows {
        scores: u64,
        sinks: u64,
        softcap: f32,
        rows: i32,
        keys: i32,
        past: i32,
        window: i32,
    }

    struct MultiplyRows {
        x: u64,
        weights: [u64; MATRICES],
        biases: [u64; MATRICES],
        results: [u64; MATRICES],
        norm: u64,
        residual: u64,
        eps: f32,
        limit: f32,
        slope: f32,
        outs: [i32; MATRICES],
        depth: i32,
        rows: i32,
    }

    struct WidenBlocks {
        weights: u64,
        numbers: u64,
        out: u64,
        depth: i32,
        count: i32,
    }

    struct AddNorm {
        x: u64,
        y: u64,
        weight: u64,
        sum: u64,
        normed: u64,
        eps: f32,
        width: i32,
    }

    struct SiluGate {
        gate: u64,
        up: u64,
        out: u64,
        count: i64,
        limit: f32,
        slope: f32,
    }
}
