#include "model/data_section.hpp"

#include <algorithm>

#include "base/problems.hpp"
#include "model/click_section.hpp"
#include "model/forms.hpp"
#include "model/yaml_path.hpp"

namespace tessera::model {
namespace {

// Far above any vocabulary.
constexpr std::int64_t kMostTokens = 1 << 30;

double fraction(const ConfigNode& node) {
  const double value = node.as_double();
  if (value <= 0 || value > 1) throw node.error(text("found ", value), "a number above 0 and at most 1");
  return value;
}

TokenizerSpec read_tokenizer(const ConfigNode& node) {
  TokenizerSpec tokenizer;
  Section section(node, {"kind", "vocab", "file"});
  section.read("kind", tokenizer.kind, [](const ConfigNode& kind) { return kind.as_choice({"bpe", "hf", "sentencepiece", "bytes"}); });
  section.read("vocab", tokenizer.vocab, [](const ConfigNode& vocab) { return vocab.as_int_between(257, kMostTokens); });
  section.read("file", tokenizer.file, path_of);
  section.finish();
  const bool needs_file = tokenizer.kind == "hf" || tokenizer.kind == "sentencepiece";
  if (needs_file && tokenizer.file.empty()) throw node.error("a tokenizer of kind '" + tokenizer.kind + "' needs its file", "file: PATH");
  if (!needs_file && !tokenizer.file.empty())
    throw node.at("file").error("a tokenizer of kind '" + tokenizer.kind + "' has no file", "kind: hf or sentencepiece");
  if (needs_file && node.has("vocab"))
    throw node.at("vocab").error("a tokenizer of kind '" + tokenizer.kind + "' has the vocabulary of its file", "no vocab");
  return tokenizer;
}

double read_split(const ConfigNode& node) {
  double train = DataSpec().train_fraction;
  Section section(node, {"train"});
  section.read("train", train, fraction);
  section.finish();
  return train;
}

double read_weight(const ConfigNode& node) {
  // Far beyond what anyone mixes, and shares of 1e-12 still are whole samples of an epoch.
  constexpr double kMost = 1e6;
  const double value = node.as_double();
  if (!(value >= 1 / kMost && value <= kMost)) throw node.error(text("found ", value), text("a number from ", 1 / kMost, " to ", kMost));
  return value;
}

SourceSpec read_source(const ConfigNode& node) {
  SourceSpec source;
  source.where = node.where();
  if (node.is_scalar()) {
    source.path = path_of(node);
    return source;
  }
  Section section(node, {"path", "weight"});
  section.need("path", source.path, path_of);
  section.read("weight", source.weight, read_weight);
  section.finish();
  return source;
}

std::vector<SourceSpec> read_sources(const ConfigNode& node) {
  std::vector<SourceSpec> sources;
  Problems problems;
  for (const ConfigNode& item : node.items()) problems.attempt([&] { sources.push_back(read_source(item)); });
  problems.raise();
  if (sources.empty()) throw node.error("the list is empty", "at least one source");
  const auto weighted = std::count_if(sources.begin(), sources.end(), [](const SourceSpec& source) { return source.weight.has_value(); });
  if (weighted != 0 && weighted != std::ssize(sources))
    throw node.error(text(weighted, " of ", sources.size(), " sources have a weight"), "a weight for all of them, or for none");
  return sources;
}

void read_source_or_sources(const ConfigNode& node, DataSpec& data) {
  const auto one = node.find("source");
  const auto several = node.find("sources");
  if (one && several) throw several->error("'source' and 'sources' exclude each other", "one of them");
  if (!one && !several) return;
  data.where = (one ? *one : *several).where();
  if (one && one->is_scalar() && one->as_string() == "synthetic")
    data.synthetic = true;
  else if (one)
    data.sources = {{.path = path_of(*one), .where = one->where()}};
  else
    data.sources = read_sources(*several);
}

void check_records(const ConfigNode& node, const RecordSpec& records) {
  if (records.has_prompts() && !records.label.empty())
    throw node.at("label").error("a text has a label, and a prompt an answer", "'field' and 'label', or 'prompt' and 'answer'");
  if (records.prompt.empty() != records.answer.empty())
    throw node.at(records.answer.empty() ? "prompt" : "answer").error("'prompt' and 'answer' belong together", "both of them");
  if (records.has_prompts() && node.has("field"))
    throw node.at("field").error("'prompt' and 'answer' stand in place of 'field'", "no field");
}

double between(const ConfigNode& node, double least, double most) {
  const double value = node.as_double();
  if (!(value >= least && value <= most)) throw node.error(text("found ", value), text("a number from ", least, " to ", most));
  return value;
}

auto part(double most) {
  return [most](const ConfigNode& node) { return between(node, 0, most); };
}

JitterSpec read_jitter(const ConfigNode& node) {
  // Factors beyond are white; the hue comes round again after half a turn either way.
  constexpr double kMostFactor = 100, kMostTurn = 0.5;
  JitterSpec jitter;
  Section section(node, {"brightness", "contrast", "saturation", "hue"});
  section.read("brightness", jitter.brightness, part(kMostFactor));
  section.read("contrast", jitter.contrast, part(kMostFactor));
  section.read("saturation", jitter.saturation, part(kMostFactor));
  section.read("hue", jitter.hue, part(kMostTurn));
  section.finish();
  return jitter;
}

std::vector<double> read_channels(const ConfigNode& node, double least) {
  constexpr double kMost = 1000;
  if (node.is_scalar()) return {between(node, least, kMost)};
  std::vector<double> values;
  for (const ConfigNode& item : node.items()) values.push_back(between(item, least, kMost));
  if (values.size() != 1 && values.size() != 3) throw node.error(text("has ", values.size(), " entries"), "one, or one for each channel");
  return values;
}

void read_normalize(const ConfigNode& node, ImageSpec& images) {
  constexpr double kLeastDeviation = 1e-6;
  Section section(node, {"mean", "std"});
  section.need("mean", images.mean, [](const ConfigNode& mean) { return read_channels(mean, -1000); });
  section.need("std", images.std, [](const ConfigNode& deviation) { return read_channels(deviation, kLeastDeviation); });
  section.finish();
}

void read_scale(const ConfigNode& node, ImageSpec& images) {
  constexpr double kLeastScale = 1e-6;
  if (node.size() != 2) throw node.error(text("has ", node.size(), " entries"), "[least, most] of the image's area");
  images.scale_least = between(node[0], kLeastScale, 1);
  images.scale_most = between(node[1], images.scale_least, 1);
}

CropKind read_crop(const ConfigNode& node) {
  const std::string kind = node.as_choice({"center", "random", "random_resized"});
  return kind == "center" ? CropKind::center : kind == "random" ? CropKind::random : CropKind::random_resized;
}

ImageSpec read_images(const ConfigNode& node) {
  constexpr std::int64_t kMostSide = 1 << 14;
  constexpr double kMostMixup = 100;
  ImageSpec images;
  Section section(node, {"resize", "crop", "padding", "scale", "flip", "jitter", "normalize", "mixup"});
  section.read("resize", images.resize, [](const ConfigNode& side) { return side.as_int_between(1, kMostSide); });
  section.read("crop", images.crop, read_crop);
  section.read("padding", images.padding, [](const ConfigNode& side) { return side.as_int_between(0, kMostSide); });
  section.attempt([&] {
    if (const auto scale = node.find("scale")) read_scale(*scale, images);
  });
  section.read("flip", images.flip, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.read("jitter", images.jitter, read_jitter);
  section.attempt([&] {
    if (const auto normalize = node.find("normalize")) read_normalize(*normalize, images);
  });
  section.read("mixup", images.mixup, part(kMostMixup));
  section.finish();
  if (images.padding > 0 && images.crop != CropKind::random)
    throw node.at("padding").error("padding makes room for a random crop", "crop: random beside it, or no padding");
  if (node.has("scale") && images.crop != CropKind::random_resized)
    throw node.at("scale").error("scale is the area of a random_resized crop", "crop: random_resized beside it, or no scale");
  return images;
}

MaskSpec read_mask(const ConfigNode& node) {
  constexpr double kLongestSpan = 1000;
  MaskSpec mask;
  Section section(node, {"share", "token", "span"});
  section.read("share", mask.share, fraction);
  section.read("token", mask.token, [](const ConfigNode& token) {
    const std::string name = token.as_string();
    if (name.empty()) throw token.error("the token is empty", "a token of the tokenizer");
    return name;
  });
  section.read("span", mask.span, [](const ConfigNode& span) { return between(span, 1, kLongestSpan); });
  section.finish();
  return mask;
}

void check_mask(const ConfigNode& node, const DataSpec& data, const ModelSpec& model) {
  const bool spans = predicts_masked_spans(model);
  if (const auto mask = node.find("mask")) {
    if (predicts_next_token(model))
      throw mask->error(text(model.arch, " predicts the next token, and none of its tokens are masked"), "no mask",
                        "models that predict masked tokens have arch: bert, and masked spans arch: t5");
    if (spans && mask->has("token"))
      throw mask->at("token").error(text(model.arch, " marks masked spans by the last ids of model.vocab"), "no token");
    if (!spans && mask->has("span")) throw mask->at("span").error(text(model.arch, " predicts single tokens that are masked"), "no span");
    constexpr double kMostInSpans = 0.5;
    if (spans && data.mask->share > kMostInSpans)
      throw mask->at("share").error(text("found ", data.mask->share), text("at most ", kMostInSpans, " for ", model.arch));
  }
  if (predicts_next_token(model)) return;
  if (classifies_text(model)) {
    for (const char* key : {"mask", "prompt", "separate_documents", "sources"})
      if (const auto said = node.find(key))
        throw said->error(text(key, " is not said of texts whose class the model tells"), text("no ", key),
                          "field: KEY names the text, label: KEY its class");
    return;
  }
  if (data.records.has_prompts())
    throw node.at("prompt").error(text(model.arch, " predicts what is masked in all of a text, and not answers to prompts"),
                                  "no prompt and no answer", "field: KEY names one text of each record");
  if (spans && data.separate_documents)
    throw node.at("separate_documents").error(text(model.arch, " reads stretches of all documents"), "separate_documents: false");
}

void check_label(const ConfigNode& node, const DataSpec& data, const ModelSpec& model) {
  if (const auto label = node.find("label"); label && !classifies_text(model))
    throw label->error(text(model.arch, " tells no classes of texts"), "no label", "arch: bert with head: classification does");
  if (classifies_text(model) && data.records.label.empty() && !data.synthetic && !data.sources.empty())
    throw node.error("the model tells the class of a text, and the data names none", "label: KEY, the class's key in each record");
}

LengthSpec read_lengths(const ConfigNode& node) {
  LengthSpec lengths;
  if (node.is_scalar()) {
    node.as_choice({"documents"});
    return lengths;
  }
  Section section(node, {"kind", "median"});
  section.need("kind", lengths.kind, [](const ConfigNode& kind) {
    const std::string name = kind.as_choice({"lognormal", "pareto", "uniform"});
    return name == "lognormal" ? LengthSpec::Kind::lognormal : name == "pareto" ? LengthSpec::Kind::pareto : LengthSpec::Kind::uniform;
  });
  section.read("median", lengths.median, [](const ConfigNode& median) { return median.as_int_between(1, kMostTokens); });
  section.finish();
  const bool uniform = lengths.kind == LengthSpec::Kind::uniform;
  if (uniform != (lengths.median == 0))
    throw node.error(uniform ? "uniform lengths have the median model.seq / 2" : "lengths of this kind need a median",
                     uniform ? "no median" : "median: TOKENS");
  return lengths;
}

// Random masks of activations, and what experts drop, are said by sample; here several stand in one row.
void check_lengths(const ConfigNode& node, const DataSpec& data, const ModelSpec& model) {
  if (!data.lengths) return;
  const ConfigNode lengths = node.at("lengths");
  const bool documents = data.lengths->kind == LengthSpec::Kind::documents;
  if (documents && data.synthetic)
    throw lengths.error("synthetic data has no documents", "a distribution", "lengths: {kind: lognormal, median: 128}");
  if (!documents && !data.synthetic)
    throw lengths.error("a distribution of lengths is of synthetic data; text has lengths of its own", "lengths: documents");
  if (!data.separate_documents)
    throw node.at("separate_documents").error("samples with lengths of their own are always kept apart", "no separate_documents");
  if (!predicts_next_token(model))
    throw lengths.error(text(model.arch, " takes samples of one length alone"), "a model that predicts the next token, or no lengths");
  for (const Repeat& repeat : model.repeats) {
    if (repeat.block.dims.contains("experts"))
      throw lengths.error("the balance of experts is counted by samples of one length", "a model without experts, or no lengths");
    for (const auto& [name, value] : repeat.block.dims)
      if (name.ends_with("dropout") && value > 0)
        throw lengths.error("dropout is drawn by samples of one length", "model.dropout: 0, or no lengths");
  }
  if (data.lengths->median > model.dim("seq"))
    throw lengths.at("median").error(text("found ", data.lengths->median, ", and the longest sample has model.seq ", model.dim("seq")),
                                     text("at most ", model.dim("seq")));
}

OnError read_on_error(const ConfigNode& node) { return node.as_choice({"stop", "skip"}) == "skip" ? OnError::skip : OnError::stop; }

// Of models that read no text.
void refuse_text_keys(const ConfigNode& node, std::initializer_list<const char*> keys, const char* read) {
  for (const char* key : keys)
    if (const auto said = node.find(key)) throw said->error(text(key, " is said of text, and the model reads ", read), text("no ", key));
}

std::string key(const ConfigNode& node) {
  const std::string name = node.as_string();
  if (name.empty()) throw node.error("the key is empty", "a key of the records");
  return name;
}

}  // namespace

DataSpec read_data(const ConfigNode& node) {
  DataSpec data;
  data.where = node.where();
  Section section(node, {"source", "sources", "field", "prompt", "answer", "label", "on_error", "separate_documents", "lengths",
                         "tokenizer", "split", "mask", "images", "workers", "format", "columns", "negatives"});
  section.attempt([&] { read_source_or_sources(node, data); });
  section.read("field", data.records.field, key);
  section.read("prompt", data.records.prompt, key);
  section.read("answer", data.records.answer, key);
  section.read("label", data.records.label, key);
  section.attempt([&] { check_records(node, data.records); });
  section.read("on_error", data.records.on_error, read_on_error);
  // Answers to one question say nothing of the next.
  section.read("lengths", data.lengths, read_lengths);
  data.separate_documents = data.records.has_prompts() || data.lengths;
  section.read("separate_documents", data.separate_documents, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.read("tokenizer", data.tokenizer, read_tokenizer);
  section.read("split", data.train_fraction, read_split);
  section.read("mask", data.mask, read_mask);
  section.read("images", data.images, read_images);
  section.attempt([&] { read_clicks(node, data); });
  constexpr std::int64_t kMostThreads = 1024;
  section.read("workers", data.workers, [](const ConfigNode& threads) { return threads.as_int_between(1, kMostThreads); });
  section.finish();
  return data;
}

void check_data(const ConfigNode& node, const DataSpec& data, const ModelSpec& model) {
  if (reads_clicks(model)) {
    if (const auto images = node.find("images")) throw images->error("the model reads click logs", "no images");
    refuse_text_keys(node, {"sources", "field", "prompt", "answer", "label", "separate_documents", "lengths", "tokenizer", "mask"},
                     "click logs");
    return check_clicks(node, data, model);
  }
  for (const char* key : {"format", "columns", "negatives"})
    if (const auto said = node.find(key))
      throw said->error(text(key, " is said of click logs, and the model reads none"), text("no ", key));
  if (!reads_images(model)) {
    if (const auto images = node.find("images")) throw images->error("the model reads text", "no images");
    check_label(node, data, model);
    check_mask(node, data, model);
    check_lengths(node, data, model);
    return;
  }
  refuse_text_keys(node, {"sources", "field", "prompt", "answer", "label", "separate_documents", "lengths", "tokenizer", "mask"}, "images");
  const std::size_t channels = static_cast<std::size_t>(model.dim("channels"));
  for (const auto* values : {&data.images.mean, &data.images.std})
    if (values->size() > 1 && values->size() != channels)
      throw node.at("images")
          .at("normalize")
          .error(text("has ", values->size(), " values, and model.channels is ", channels), "one, or one for each channel");
}

}  // namespace tessera::model
