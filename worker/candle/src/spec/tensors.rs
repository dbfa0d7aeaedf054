//! The tensors that a decoder needs, by name and shape: `[out, in]` for a projection. Names are those of Llama in
//! safetensors, for all families; [`TensorSpelling`](crate::spec::TensorSpelling) has the names in the files.

use crate::spec::part_names::{FINAL_NORM, MIXER_NORM, MIXER_POST_NORM, MLP_NORM, MLP_POST_NORM, Needed, layer};
use crate::spec::{
    AttentionSpec, DecoderSpec, DeltaNetSpec, ExpertsSpec, FeedForward, GatedNorm, LatentSpec, LayerSpec, MambaSpec,
    Mixer, MlpSpec, NormKind, NormPlaces, QueryKeyNorm, ShortConvSpec, StreamsSpec,
};

impl DecoderSpec {
    /// All needed tensors apart from embedding and head, which may be one tensor under either name. The iterator is
    /// lazy, because the number of layers is only the configuration's claim until the weights have confirmed it.
    pub(crate) fn needed(&self) -> impl Iterator<Item = Needed> + '_ {
        self.needed_outside().into_iter().chain((0..self.layers.len()).flat_map(|index| self.needed_by_layer(index)))
    }

    /// The needed tensors outside of layers, apart from embedding and head.
    pub(crate) fn needed_outside(&self) -> Vec<Needed> {
        let mut tensors = NeededTensors::default();
        tensors.norm(self.norm.kind, FINAL_NORM.trim_end_matches(".weight"), self.hidden);
        tensors.needed.extend(self.needed_before_layers());
        tensors.needed.extend(self.needed_behind_layers());
        tensors.needed
    }

    /// The tensors besides the embedding that the first device reads.
    pub(crate) fn needed_before_layers(&self) -> Vec<Needed> {
        let mut tensors = NeededTensors::default();
        if let Some(streams) = &self.streams {
            let inputs = self.layers.len() * streams.layer_input;
            for stream in 1..streams.count {
                tensors.add(&format!("model.altup_projections.{}.weight", stream - 1), &[self.hidden, self.hidden]);
            }
            tensors.add("model.embed_tokens_per_layer.weight", &[streams.layer_vocab, inputs]);
            tensors.add("model.per_layer_model_projection.weight", &[inputs, self.hidden]);
            tensors.add("model.per_layer_projection_norm.weight", &[streams.layer_input]);
        }
        tensors.needed
    }

    /// The tensors besides norm and head that the last device reads.
    pub(crate) fn needed_behind_layers(&self) -> Vec<Needed> {
        let mut tensors = NeededTensors::default();
        for stream in 1..self.streams.as_ref().map_or(1, |streams| streams.count) {
            let name = format!("model.altup_unembed_projections.{}.weight", stream - 1);
            tensors.add(&name, &[self.hidden, self.hidden]);
        }
        tensors.needed
    }

    /// Shape of the embedding and of the head.
    pub(crate) fn embedding_shape(&self) -> Vec<usize> {
        vec![self.vocab, self.hidden]
    }

    /// All tensors that one layer needs.
    pub(crate) fn needed_by_layer(&self, index: usize) -> Vec<Needed> {
        let mut tensors = NeededTensors { prefix: layer(index, ""), needed: Vec::new() };
        let Some(LayerSpec { mixer, feed_forward, norms }) = self.layers.get(index) else { return Vec::new() };
        let (mixes, feeds) = (*mixer != Mixer::None, *feed_forward != FeedForward::None);
        let places = [
            (MIXER_NORM, mixes && (*norms == NormPlaces::Parallel || norms.before())),
            (MLP_NORM, feeds && norms.before()),
            (MIXER_POST_NORM, mixes && norms.behind()),
            (MLP_POST_NORM, feeds && norms.behind()),
        ];
        for (norm, _) in places.into_iter().filter(|(_, there)| *there) {
            tensors.norm(self.norm.kind, norm, self.hidden);
        }
        match mixer {
            Mixer::Attention(attention) => tensors.attention(attention, self.hidden),
            Mixer::Latent(latent) => tensors.latent(latent, self.hidden),
            Mixer::ShortConv(conv) => tensors.short_conv(conv),
            Mixer::DeltaNet(net) => tensors.delta_net(net, self.hidden),
            Mixer::Mamba(mamba) => tensors.mamba(mamba, self.hidden),
            Mixer::Both(attention, mamba) => {
                tensors.attention(attention, self.hidden);
                tensors.mamba(mamba, self.hidden);
            }
            Mixer::None => {}
        }
        match feed_forward {
            FeedForward::Gated(mlp) => tensors.gated("mlp", mlp, self.hidden),
            FeedForward::Plain(mlp) => tensors.plain("mlp", mlp, self.hidden),
            FeedForward::None => {}
            FeedForward::Experts(experts) => tensors.experts(experts, self.hidden),
        }
        if let Some(streams) = &self.streams {
            tensors.streams(streams, self.hidden);
        }
        tensors.needed
    }
}

/// A list of tensors that grows.
#[derive(Default)]
struct NeededTensors {
    prefix: String,
    needed: Vec<Needed>,
}

impl NeededTensors {
    fn add(&mut self, part: &str, shape: &[usize]) {
        self.needed.push(Needed { name: format!("{}{part}", self.prefix), shape: shape.to_vec() });
    }

    fn norm(&mut self, kind: NormKind, path: &str, width: usize) {
        self.add(&format!("{path}.weight"), &[width]);
        if kind == NormKind::LayerWithBias {
            self.add(&format!("{path}.bias"), &[width]);
        }
    }

    fn linear(&mut self, path: &str, outs: usize, ins: usize, bias: bool) {
        if bias {
            self.add(&format!("{path}.bias"), &[outs]);
        }
        self.add(&format!("{path}.weight"), &[outs, ins]);
    }

    fn attention(&mut self, attention: &AttentionSpec, hidden: usize) {
        let (inputs, output) = (attention.bias.of_inputs(), attention.bias.of_output());
        let AttentionSpec { heads, kv_heads, head_dim, .. } = *attention;
        let shapes: [&[usize]; 2] = match attention.norm {
            QueryKeyNorm::None => [&[], &[]],
            QueryKeyNorm::Heads(_) => [&[head_dim], &[head_dim]],
            QueryKeyNorm::Whole => [&[attention.q_width()], &[attention.kv_width()]],
            QueryKeyNorm::LayerPerHead => [&[heads, head_dim], &[kv_heads, head_dim]],
        };
        let own = attention.keys_of.is_none();
        for (part, shape) in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"].into_iter().zip(shapes) {
            if !shape.is_empty() && (own || part.contains("q_norm")) {
                self.add(part, shape);
            }
        }
        if attention.sinks {
            self.add("self_attn.sinks", &[heads]);
        }
        self.linear("self_attn.q_proj", attention.query_rows(), hidden, inputs);
        if own {
            self.linear("self_attn.k_proj", attention.kv_width(), hidden, inputs);
            self.linear("self_attn.v_proj", attention.kv_width(), hidden, inputs);
        }
        self.linear("self_attn.o_proj", hidden, attention.q_width(), output);
    }

    fn latent(&mut self, latent: &LatentSpec, hidden: usize) {
        let LatentSpec { heads, query_rank, rank, plain_dim, value_dim, bias, .. } = *latent;
        let queries = heads * latent.query_dim();
        match query_rank {
            None => self.linear("self_attn.q_proj", queries, hidden, false),
            Some(query_rank) => {
                self.linear("self_attn.q_a_proj", query_rank, hidden, bias);
                self.add("self_attn.q_a_layernorm.weight", &[query_rank]);
                self.linear("self_attn.q_b_proj", queries, query_rank, false);
            }
        }
        self.linear("self_attn.kv_a_proj_with_mqa", latent.key_dim(), hidden, bias);
        self.add("self_attn.kv_a_layernorm.weight", &[rank]);
        for head in 0..heads {
            self.add(&format!("self_attn.heads.{head}.k_proj.weight"), &[rank, plain_dim]);
            self.add(&format!("self_attn.heads.{head}.v_proj.weight"), &[value_dim, rank]);
        }
        self.linear("self_attn.o_proj", hidden, heads * value_dim, bias);
    }

    /// A convolution of each channel by itself. It is no matrix, which the stored shape says too.
    fn conv(&mut self, path: &str, width: usize, taps: usize, bias: bool) {
        if bias {
            self.add(&format!("{path}.bias"), &[width]);
        }
        self.add(&format!("{path}.weight"), &[width, 1, taps]);
    }

    fn short_conv(&mut self, conv: &ShortConvSpec) {
        let ShortConvSpec { width, taps, bias } = *conv;
        self.conv("conv.conv", width, taps, bias);
        self.linear("conv.in_proj", 3 * width, width, bias);
        self.linear("conv.out_proj", width, width, bias);
    }

    fn delta_net(&mut self, net: &DeltaNetSpec, hidden: usize) {
        let (heads, values) = (net.value_heads, net.value_width());
        for part in ["linear_attn.A_log", "linear_attn.dt_bias"] {
            self.add(part, &[heads]);
        }
        self.add("linear_attn.norm.weight", &[net.value_dim]);
        self.conv("linear_attn.conv1d", net.conv_width(), net.taps, false);
        if net.one_input {
            self.linear("linear_attn.in_proj_qkvz", net.conv_width() + values, hidden, false);
        } else {
            self.linear("linear_attn.in_proj_qkv", net.conv_width(), hidden, false);
            self.linear("linear_attn.in_proj_z", values, hidden, false);
        }
        if net.one_rate {
            self.linear("linear_attn.in_proj_ba", 2 * heads, hidden, false);
        } else {
            self.linear("linear_attn.in_proj_b", heads, hidden, false);
            self.linear("linear_attn.in_proj_a", heads, hidden, false);
        }
        self.linear("linear_attn.out_proj", hidden, values, false);
    }

    fn mamba(&mut self, mamba: &MambaSpec, hidden: usize) {
        for part in ["mamba.A_log", "mamba.D", "mamba.dt_bias"] {
            self.add(part, &[mamba.heads]);
        }
        if mamba.norm != GatedNorm::None {
            self.add("mamba.norm.weight", &[mamba.inner()]);
        }
        self.conv("mamba.conv1d", mamba.conv_width(), mamba.taps, mamba.conv_bias);
        self.linear("mamba.in_proj", mamba.input_rows(), hidden, mamba.bias);
        self.linear("mamba.out_proj", hidden, mamba.inner(), mamba.out_bias);
    }

    fn gated(&mut self, path: &str, mlp: &MlpSpec, hidden: usize) {
        self.linear(&format!("{path}.gate_proj"), mlp.intermediate, hidden, mlp.bias);
        self.plain(path, mlp, hidden);
    }

    fn plain(&mut self, path: &str, mlp: &MlpSpec, hidden: usize) {
        self.linear(&format!("{path}.up_proj"), mlp.intermediate, hidden, mlp.bias);
        self.linear(&format!("{path}.down_proj"), hidden, mlp.intermediate, mlp.bias);
    }

    fn streams(&mut self, streams: &StreamsSpec, hidden: usize) {
        let StreamsSpec { count, layer_input, laurel_rank, scaled, .. } = *streams;
        if scaled {
            self.add("altup.correct_output_scale", &[hidden]);
        }
        self.add("altup.correction_coefs.weight", &[count, count]);
        self.add("altup.prediction_coefs.weight", &[count * count, count]);
        self.add("altup.modality_router.weight", &[count, hidden]);
        self.add("altup.router_norm.weight", &[hidden]);
        self.add("laurel.linear_left.weight", &[laurel_rank, hidden]);
        self.add("laurel.linear_right.weight", &[hidden, laurel_rank]);
        self.add("laurel.post_laurel_norm.weight", &[hidden]);
        self.add("per_layer_input_gate.weight", &[layer_input, hidden]);
        self.add("per_layer_projection.weight", &[hidden, layer_input]);
        self.add("post_per_layer_input_norm.weight", &[hidden]);
    }

    fn experts(&mut self, experts: &ExpertsSpec, hidden: usize) {
        self.linear("mlp.gate", experts.count, hidden, experts.router.bias);
        if experts.router.correction {
            self.add("mlp.gate.e_score_correction_bias", &[experts.count]);
        }
        if let Some(shared) = &experts.shared {
            match experts.gated {
                true => self.gated("mlp.shared_expert", &shared.mlp, hidden),
                false => self.plain("mlp.shared_expert", &shared.mlp, hidden),
            }
            if shared.gate {
                self.add("mlp.shared_expert_gate.weight", &[1, hidden]);
            }
        }
        let ExpertsSpec { intermediate, activation, bias, .. } = *experts;
        for expert in 0..experts.count {
            let (path, mlp) = (format!("mlp.experts.{expert}"), MlpSpec { intermediate, bias, activation });
            match experts.gated {
                true => self.gated(&path, &mlp, hidden),
                false => self.plain(&path, &mlp, hidden),
            }
        }
    }
}
