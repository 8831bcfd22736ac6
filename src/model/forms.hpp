// Which blocks nn/ computes, and what their dimensions say of their form beside model/layer_cost.hpp:
//
//   layer_norm 0      1: LayerNorm instead of RMSNorm
//   gelu 0            1: GELU instead of SiLU in the feed-forward network, in its form with a tanh
//   gelu_exact 0      1: in its exact form
//   post_norm 0       1: norms stand behind the sums of a layer, and the first one reads its input as it is (BERT)
//   biases 0          1: of all maps of a layer, and of LayerNorms
//   maps_in_out 0     1: maps are stored [in, out], and those that read the same input side by side as one (model/gpt.cpp)
//   positions 0       so many learned positions are added to the embedding
//   token_types 0     a row of so many is added to the embedding, by the part of its sample that a token stands in
//   embedding_norm 0  1: a norm behind the embedding
//   head_transform 0  1: a map, GELU and a norm before the projection to the vocabulary instead of a norm alone, and a bias behind it
//   buckets 0         so many rows of a table of relative positions, up to max_distance apart (T5)
//   decodes 0         1: an embedding of the decoder's tokens
//   drops_normed 0    1: what the head's norm makes is dropped, too
//   head_scale 1      what multiplies it before the projection
//   dropout 0         the probability with which training drops an element of the embedding, of attention's shares and of both outputs of a
//                     layer
#pragma once

#include "model/model.hpp"

namespace tessera::model {

// Whether nn/ computes a block of this kind with these dimensions: those of language models of one stack, in the forms of Llama and GPT-2,
// with experts or without, and of BERT, and those of T5, ResNet, VGG, ViT, and of models that read clicks. Others are for planning and
// simulation, or a plug-in's.
bool computed_by_nn(const BlockSpec& block);
// Whether nn/ also cuts it, by tensor, sequence and context parallelism, and computes its attention again alone: those of language models
// of one stack. Each rank holds the others whole; the gradients of most are autograd's.
bool cut_by_nn(const BlockSpec& block);
// Whether it is of a T5.
bool is_of_t5(const BlockSpec& block);
// Whether nn/ computes in such numbers: fp32 and bf16.
bool computed_by_nn(Precision precision);
// Throws invalid_config, which names `where`, where the trainer has no blocks for the model, none that compute as the model says, or none
// in this precision. Every plan of a model that passes can be trained.
void check_has_blocks(const ModelSpec& model, Precision precision, const Where& where);

// How many samples of a micro-batch a rank takes at least: two where batch norm would have one value a channel otherwise, and leave nothing
// of it (ResNet's last blocks on small images), and it is not synchronized over several replicas.
std::int64_t least_samples(const BlockSpec& block, std::int64_t replicas);

// Whether a router of the block chooses experts for each token. Other blocks of such a model have its dimensions as well.
bool routes_to_experts(const BlockSpec& block);

// Whether a sample is an image and its class: "image" (the side), "channels" and "classes" are dimensions of the model. A batch then has
// `images`, f32 [samples, channels, image, image], and `labels`, i64 [samples], of which -1 does not count.
bool reads_images(const ModelSpec& model);

// Whether a sample is a click log's line: "tables", "lookups" and "dense" are dimensions of the model. A batch then has `labels`, i64
// [samples], of which -1 does not count, `keys`, i64 [samples, tables, lookups] (data/clicks/keys.hpp), and where `dense` is above 0
// `dense`, f32 [samples, dense]. Where the model has a history, its dimensions "history" (most keys of a sample's) and "target" (the table
// whose rows they are of) say so, and a batch has `history`, i64 [samples, history].
bool reads_clicks(const ModelSpec& model);
// 0 of models without a history.
std::int64_t history_of(const ModelSpec& model);
// Of a model that reads clicks: the index of the block whose rows lie on parameter servers, and the rows of each of its tables, 0 where any
// id has one.
int tables_block(const ModelSpec& model);
// Rows that a sample looks up in that block, whether they are summed or, as a history's, not.
std::int64_t lookups_of_sample(const BlockSpec& tables);
std::vector<std::int64_t> table_rows(const ModelSpec& model);

// Whether it tells the class of each sample, of an image or of a text: "classes" is a dimension of the model.
bool classifies(const ModelSpec& model);
// Whether a sample is a text and its class. A batch then has `tokens` and `positions`, i64 [samples, seq], and `labels` as of images.
// Positions begin anew at 0 where the text has ended and padding follows.
bool classifies_text(const ModelSpec& model);

// Whether `split_layers: true` would make two blocks of each layer of a model that has them whole: BERT's, ResNet's.
bool may_split_layers(const ModelSpec& model);

// What StepReport::tokens counts: "tokens", "images" or "samples".
const char* counted_in(const ModelSpec& model);

// Whether the targets are tokens of the sample itself that are masked in it, as BERT's, and not the next ones: the model reads text, and
// its dimension "causal" is 0.
bool predicts_masked_tokens(const ModelSpec& model);
// Whether an encoder reads text from which spans are missing, and a decoder writes these, as T5's: "decoder_seq" is a dimension of the
// model.
bool predicts_masked_spans(const ModelSpec& model);
// Whether targets are the next tokens of a text, so that the model can go on with one.
bool predicts_next_token(const ModelSpec& model);

}  // namespace tessera::model
