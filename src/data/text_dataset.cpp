#include "data/text_dataset.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "data/masks.hpp"
#include "data/mixture.hpp"
#include "data/samples.hpp"
#include "data/spans.hpp"

namespace tessera::data {
namespace {

// Validation samples of several sources are in one order, whatever the seed: evaluations of different runs compare.
constexpr std::uint64_t kValidationSeed = 0x76616C69;
constexpr std::uint64_t kMaskSeed = 0x6D61736B;

struct Part {
  std::filesystem::path path;
  std::optional<TokenCache> tokens;  // none: synthetic
  std::unique_ptr<Samples> samples;
};

std::unique_ptr<Part> open_part(const model::DataSpec& spec, const model::SourceSpec& source_spec, std::int64_t seq,
                                const Tokenizer& tokenizer, const std::filesystem::path& cache_dir, const ProgressCallback& progress,
                                std::vector<std::string>& notes) {
  const Source source = open_source(source_spec.path, spec.records, source_spec.where);
  if (!source.left_out.empty()) notes.push_back(left_out_text(source));
  auto part = std::make_unique<Part>();
  part->path = source_spec.path;
  const TokenCache& tokens = part->tokens.emplace(open_token_cache(source, tokenizer, source_spec.where, cache_dir, progress));
  if (tokens.skipped() > 0)
    notes.push_back(text(tokens.skipped(), " records of ", source.root.string(), " cannot be read and were skipped (data.on_error: skip)"));
  part->samples =
      (spec.records.has_prompts() || spec.lengths ? make_document_samples : make_stream_samples)(tokens, seq, spec, source_spec.where);
  notes.insert(notes.end(), part->samples->notes().begin(), part->samples->notes().end());
  return part;
}

std::vector<double> weights_of(const model::DataSpec& spec) {
  std::vector<double> weights;
  for (const model::SourceSpec& source : spec.sources)
    if (source.weight) weights.push_back(*source.weight);
  return weights;
}

}  // namespace

void check_vocabulary(const model::DataSpec& spec, const Tokenizer& tokenizer, std::int64_t vocab) {
  const std::int64_t size = tokenizer.vocab_size();
  if (size <= vocab) return;
  throw Error(ErrorCode::invalid_config, text("the tokenizer has ", size, " tokens but model.vocab is ", vocab), spec.where,
              text("model.vocab of at least ", size),
              text("set model.vocab to ", size, spec.tokenizer.kind == "bpe" ? text(", or data.tokenizer.vocab to ", vocab) : ""));
}

struct TextDataset::State {
  model::DataSpec spec;
  std::int64_t seq = 0;
  std::int64_t text_length = 0;  // tokens of a stretch that is a sample
  std::int64_t vocab = 0;
  std::uint64_t seed = 0;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<std::int64_t> id_begins = {0};  // of the parts, and the number of training samples
  std::optional<Mixture> order;               // none: nothing to train on
  std::optional<Mixture> validation;          // none: nothing to validate on
  std::optional<Masks> masks;                 // without these
  std::optional<Spans> spans;                 // and these, targets are the next tokens
  std::vector<std::string> notes;

  void mix() {
    std::vector<std::int64_t> train_sizes, validation_sizes;
    for (const auto& part : parts) {
      train_sizes.push_back(part->samples->train());
      validation_sizes.push_back(part->samples->validation());
      id_begins.push_back(id_begins.back() + train_sizes.back());
    }
    const auto all_there = [](const std::vector<std::int64_t>& sizes) {
      return std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size > 0; });
    };
    if (all_there(train_sizes)) order.emplace(train_sizes, weights_of(spec), seed);
    if (all_there(validation_sizes)) validation.emplace(validation_sizes, weights_of(spec), kValidationSeed);
  }

  std::int64_t per_epoch(std::size_t part) const { return order ? order->per_epoch(part) : 0; }

  std::size_t part_of(std::int64_t sample) const {
    return static_cast<std::size_t>(std::upper_bound(id_begins.begin(), id_begins.end(), sample) - id_begins.begin()) - 1;
  }

  void mask(const Tokenizer* of) {
    if (!spec.mask) return;
    ensure(!spec.records.has_prompts(), "masked text has no prompts");
    if (spec.mask->decoder_seq)
      text_length = spans.emplace(spec, of, seq, vocab).text_length();
    else
      masks.emplace(spec, of, vocab);
  }

  // Sample `index` of a source, in the order of fields(); what is random in it depends on `drawn`.
  void fill(const Samples& samples, std::int64_t index, const std::vector<Row>& rows, std::uint64_t drawn) const {
    const auto row = [&](std::size_t field) { return std::get<std::span<std::int32_t>>(rows.at(field)); };
    ensure(rows.size() == 2 || rows.size() == 3, "a sample has two or three rows");
    if (spans) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(text_length)), targets(tokens.size());
      samples.fill(index, {tokens, targets, {}});
      return spans->apply(tokens, row(0), row(1), row(2), drawn);
    }
    const SampleRoom room = {row(0), row(1), rows.size() > 2 ? row(2) : std::span<std::int32_t>()};
    const std::int64_t count = std::ssize(room.tokens);
    ensure((spec.lengths ? count >= samples.length(index) : count == seq) && std::ssize(room.targets) == count &&
               (room.positions.empty() || std::ssize(room.positions) == count),
           "a sample has seq tokens, targets and positions");
    samples.fill(index, room);
    if (masks) masks->apply(room.tokens, room.targets, drawn);
  }
};

TextDataset::TextDataset(std::unique_ptr<State> state) : state_(std::move(state)) { notes_ = std::move(state_->notes); }
TextDataset::~TextDataset() = default;

std::unique_ptr<TextDataset> TextDataset::open(const model::DataSpec& spec, std::int64_t seq, std::int64_t vocab, std::uint64_t seed,
                                               const std::filesystem::path& cache_dir, const ProgressCallback& progress) {
  ensure(seq > 0 && vocab > 0, "a dataset needs a sequence length and a vocabulary");
  need_source(spec);
  auto state = std::make_unique<State>();
  state->spec = spec;
  state->seq = state->text_length = seq;
  state->vocab = vocab;
  state->seed = seed;
  if (spec.synthetic) {
    state->mask(nullptr);
    auto part = std::make_unique<Part>();
    const std::int64_t drawn = state->masks ? state->masks->token() : state->spans ? state->spans->least_sentinel() : vocab;
    part->samples = make_synthetic_samples(state->text_length, drawn, seed, spec.lengths);
    state->parts.push_back(std::move(part));
    state->mix();
    return std::unique_ptr<TextDataset>(new TextDataset(std::move(state)));
  }
  if (!(spec.train_fraction >= 0 && spec.train_fraction <= 1)) {
    throw Error(ErrorCode::invalid_config, text("data.split.train is ", spec.train_fraction), spec.where, "0 to 1", "set data.split.train");
  }
  const std::filesystem::path folder = cache_dir.empty() ? default_cache_dir() : cache_dir;
  state->tokenizer = make_tokenizer(spec, folder, progress);
  check_vocabulary(spec, *state->tokenizer, vocab);
  state->mask(state->tokenizer.get());
  for (const model::SourceSpec& source : spec.sources)
    state->parts.push_back(open_part(spec, source, state->text_length, *state->tokenizer, folder, progress, state->notes));
  state->mix();
  return std::unique_ptr<TextDataset>(new TextDataset(std::move(state)));
}

std::int64_t TextDataset::train_samples() const { return state_->id_begins.back(); }
std::int64_t TextDataset::validation_samples() const { return state_->validation ? state_->validation->epoch() : 0; }
std::int64_t TextDataset::token_count() const {
  std::int64_t sum = 0;
  for (const auto& part : state_->parts)
    sum += part->tokens ? part->tokens->size() : (part->samples->train() + part->samples->validation()) * state_->text_length;
  return sum;
}
std::int64_t TextDataset::document_count() const {
  std::int64_t sum = 0;
  for (const auto& part : state_->parts) sum += part->tokens ? part->tokens->document_count() : 0;
  return sum;
}
std::int64_t TextDataset::targets_per_sample() const { return state_->spans ? state_->spans->decoder_length() : state_->seq; }
std::vector<Field> TextDataset::fields() const {
  if (state_->spans) {
    const std::vector<std::int64_t> written = {state_->spans->decoder_length()};
    return {{"tokens", {state_->seq}, FieldType::whole, 0},
            {"decoder_tokens", written, FieldType::whole, 0},
            {"targets", written, FieldType::whole, -1}};
  }
  std::vector<Field> out = {{"tokens", {state_->seq}, FieldType::whole, 0}, {"targets", {state_->seq}, FieldType::whole, -1}};
  if (state_->spec.separate_documents) out.push_back({"positions", {state_->seq}, FieldType::whole, 0});
  return out;
}

std::uint64_t TextDataset::content_hash() const {
  std::uint64_t hash = seed_of(static_cast<std::uint64_t>(state_->seq), state_->spec.separate_documents);
  for (std::size_t k = 0; k < state_->parts.size(); ++k) {
    const Part& part = *state_->parts[k];
    hash = seed_of(hash, part.tokens ? part.tokens->content_hash() : state_->seed, static_cast<std::uint64_t>(part.samples->train()),
                   static_cast<std::uint64_t>(part.samples->validation()));
    hash = seed_of(hash, static_cast<std::uint64_t>(state_->per_epoch(k)));
  }
  if (state_->masks) hash = seed_of(hash, state_->masks->settings_hash());
  if (const auto& lengths = state_->spec.lengths)
    hash = seed_of(hash, 1 + static_cast<std::uint64_t>(lengths->kind), static_cast<std::uint64_t>(lengths->median));
  if (state_->spans) hash = seed_of(hash, state_->spans->settings_hash());
  return hash;
}
std::uint64_t TextDataset::source_hash() const {
  std::uint64_t hash = 0;
  for (const auto& part : state_->parts)
    if (part->tokens) hash = hash == 0 ? part->tokens->content_hash() : seed_of(hash, part->tokens->content_hash());
  return hash;
}
const Tokenizer* TextDataset::tokenizer() const { return state_->tokenizer.get(); }

std::string TextDataset::decode(std::span<const std::int32_t> tokens, bool keep_special) const {
  StreamingDecoder decoder(*state_->tokenizer, keep_special);
  std::string out;
  for (const std::int32_t token : tokens) {
    if (state_->masks && token == state_->masks->token())
      out += decoder.finish() + "[MASK]";
    else if (const auto sentinel = state_->spans ? state_->spans->sentinel_of(token) : std::nullopt)
      out += decoder.finish() + text("<extra_id_", *sentinel, ">");
    else
      out += decoder.push(static_cast<std::uint32_t>(token));
  }
  return out + decoder.finish();
}

std::vector<TextDataset::SourceShare> TextDataset::sources() const {
  std::vector<SourceShare> out;
  for (std::size_t k = 0; k < state_->parts.size(); ++k) {
    const Part& part = *state_->parts[k];
    if (part.tokens) out.push_back({part.path, part.samples->train(), state_->per_epoch(k), part.samples->validation()});
  }
  return out;
}

std::vector<Draw> TextDataset::draws(std::int64_t step, std::int64_t global_batch) const {
  ensure(step >= 0 && global_batch > 0, "a step and a batch");
  if (global_batch > train_samples()) {
    throw Error(ErrorCode::invalid_config,
                text("a batch has ", global_batch, " sequences but the training split has only ", train_samples(), " of ",
                     state_->text_length, " tokens"),
                state_->spec.where, text("train.global_batch of at most ", train_samples()),
                "use more text, a smaller train.global_batch or a shorter model.seq");
  }
  std::vector<Draw> draws;
  draws.reserve(static_cast<std::size_t>(global_batch));
  for (std::int64_t position = step * global_batch; position < (step + 1) * global_batch; ++position) {
    const Mixture::Draw draw = state_->order->at(position);
    draws.push_back({state_->id_begins[draw.source] + draw.sample, position / state_->order->epoch()});
  }
  return draws;
}

void TextDataset::fill(const Draw& draw, const std::vector<Row>& rows) const {
  ensure(draw.sample >= 0 && draw.sample < train_samples(), text("sample ", draw.sample, " of ", train_samples()));
  const std::size_t k = state_->part_of(draw.sample);
  state_->fill(*state_->parts[k]->samples, draw.sample - state_->id_begins[k], rows,
               seed_of(state_->seed, static_cast<std::uint64_t>(draw.epoch), static_cast<std::uint64_t>(draw.sample), kMaskSeed));
}

void TextDataset::fill_validation(std::int64_t index, const std::vector<Row>& rows) const {
  ensure(index >= 0 && index < validation_samples(), text("sample ", index, " of ", validation_samples()));
  const Mixture::Draw draw = state_->parts.size() == 1 ? Mixture::Draw{0, index} : state_->validation->at(index);
  const Samples& samples = *state_->parts[draw.source]->samples;
  state_->fill(samples, samples.train() + draw.sample, rows, seed_of(kValidationSeed, static_cast<std::uint64_t>(index), kMaskSeed));
}

std::int64_t TextDataset::counted_targets(std::int64_t sample) const {
  if (state_->spans) return state_->spans->counted_targets();
  const std::size_t k = state_->part_of(sample);
  const Samples& samples = *state_->parts[k]->samples;
  const std::int64_t index = sample - state_->id_begins[k];
  if (!state_->masks) return samples.counted(index);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(state_->seq)), targets(tokens.size());
  samples.fill(index, {tokens, targets, {}});
  return state_->masks->count(tokens);
}

std::int64_t TextDataset::length(std::int64_t sample) const {
  const std::size_t k = state_->part_of(sample);
  return state_->parts[k]->samples->length(sample - state_->id_begins[k]);
}

std::int64_t TextDataset::validation_length(std::int64_t index) const {
  const Mixture::Draw draw = state_->parts.size() == 1 ? Mixture::Draw{0, index} : state_->validation->at(index);
  const Samples& samples = *state_->parts[draw.source]->samples;
  return samples.length(samples.train() + draw.sample);
}

std::vector<std::int64_t> TextDataset::first_lengths(std::int64_t global_batch) const {
  constexpr std::int64_t kSamples = 256;
  std::vector<std::int64_t> out;
  for (std::int64_t step = 0; step < std::max<std::int64_t>(1, kSamples / global_batch); ++step)
    for (const Draw& draw : draws(step, global_batch)) out.push_back(length(draw.sample));
  return out;
}

double TextDataset::unigram_entropy_of_validation() const {
  const State& s = *state_;
  if (validation_samples() == 0) {
    throw Error(ErrorCode::invalid_config, "there are no validation tokens", s.spec.where, "data.split.train below 1",
                "set data.split.train to 0.95");
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(s.vocab));
  std::int64_t total = 0;
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(s.seq)), targets(static_cast<std::size_t>(targets_per_sample()));
  std::vector<std::int32_t> decoder_inputs(targets.size());
  const std::vector<Row> rows = s.spans ? std::vector<Row>{inputs, decoder_inputs, targets} : std::vector<Row>{inputs, targets};
  for (std::int64_t index = 0; index < validation_samples(); ++index) {
    fill_validation(index, rows);
    for (const std::int32_t token : targets) {
      if (token < 0) continue;
      ++counts[static_cast<std::size_t>(token)];
      ++total;
    }
  }
  double entropy = 0;
  for (const std::int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace tessera::data
