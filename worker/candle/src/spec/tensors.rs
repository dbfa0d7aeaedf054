//! The tensors that a decoder needs, by name and shape: `[out, in]` for a projection. Names are those of Llama in
//! safetensors, for all families; [`Spelling`](crate::spec::Spelling) has the names in the files.

use crate::spec::part_names::{FINAL_NORM, MIXER_NORM, MIXER_POST_NORM, MLP_NORM, MLP_POST_NORM, Needed, layer};
use crate::spec::{
    AttentionSpec, DecoderSpec, ExpertsSpec, FeedForward, LatentSpec, LayerSpec, Mixer, MlpSpec, NormKind, NormPlaces,
    QueryKeyNorm, StreamsSpec,
};

impl DecoderSpec {
    /// All needed tensors apart from embedding and head, which may be one tensor under either name. The iterator is
    /// lazy, because the number of layers is only the configuration's claim until the weights have confirmed it.
    pub(crate) fn needed(&self) -> impl Iterator<Item = Needed> + '_ {
        self.needed_outside().into_iter().chain((0..self.layers.len()).flat_map(|index| self.needed_by_layer(index)))
    }

    /// The needed tensors outside of layers, apart from embedding and head.
    pub(crate) fn needed_outside(&self) -> Vec<Needed> {
        let mut tensors = Tensors::default();
        tensors.norm(self.norm.kind, FINAL_NORM.trim_end_matches(".weight"), self.hidden);
        tensors.needed.extend(self.needed_before_layers());
        tensors.needed.extend(self.needed_behind_layers());
        tensors.needed
    }

    /// The tensors besides the embedding that the first device reads.
    pub(crate) fn needed_before_layers(&self) -> Vec<Needed> {
        let mut tensors = Tensors::default();
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
        let mut tensors = Tensors::default();
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
        let mut tensors = Tensors { prefix: layer(index, ""), needed: Vec::new() };
        let Some(LayerSpec { mixer, feed_forward, norms }) = self.layers.get(index) else { return Vec::new() };
        let places = [
            (MIXER_NORM, *norms == NormPlaces::Parallel || norms.before()),
            (MLP_NORM, norms.before()),
            (MIXER_POST_NORM, norms.behind()),
            (MLP_POST_NORM, norms.behind()),
        ];
        for (norm, _) in places.into_iter().filter(|(_, there)| *there) {
            tensors.norm(self.norm.kind, norm, self.hidden);
        }
        match mixer {
            Mixer::Attention(attention) => tensors.attention(attention, self.hidden),
            Mixer::Latent(latent) => tensors.latent(latent, self.hidden),
        }
        match feed_forward {
            FeedForward::Gated(mlp) => tensors.gated("mlp", mlp, self.hidden),
            FeedForward::Plain(MlpSpec { intermediate, bias, .. }) => {
                tensors.linear("mlp.up_proj", *intermediate, self.hidden, *bias);
                tensors.linear("mlp.down_proj", self.hidden, *intermediate, *bias);
            }
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
struct Tensors {
    prefix: String,
    needed: Vec<Needed>,
}

impl Tensors {
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

    fn gated(&mut self, path: &str, mlp: &MlpSpec, hidden: usize) {
        self.linear(&format!("{path}.gate_proj"), mlp.intermediate, hidden, mlp.bias);
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
            self.gated("mlp.shared_expert", &shared.mlp, hidden);
            if shared.gate {
                self.add("mlp.shared_expert_gate.weight", &[1, hidden]);
            }
        }
        let ExpertsSpec { intermediate, activation, bias, .. } = *experts;
        for expert in 0..experts.count {
            self.gated(&format!("mlp.experts.{expert}"), &MlpSpec { intermediate, bias, activation }, hidden);
        }
    }
}
