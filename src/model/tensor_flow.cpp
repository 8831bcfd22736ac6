#include "model/tensor_flow.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "base/config.hpp"

namespace tessera::model {
namespace {

std::string shape_text(const TensorSpec& tensor) {
  std::string out;
  for (const std::int64_t extent : tensor.shape) out += (out.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + out + "]";
}

[[noreturn]] void refuse(const BlockInstance& block, const std::string& what, const std::string& expected, const std::string& hint = {}) {
  throw Error(ErrorCode::invalid_config, text("block ", block.name(), " ", what), {}, expected, hint);
}

void check_reads(const std::vector<BlockInstance>& blocks) {
  std::vector<std::string> made;
  for (const BlockInstance& block : blocks) {
    for (const TensorSpec& read : block.spec->inputs) {
      if (std::find(made.begin(), made.end(), read.name) != made.end()) continue;
      const auto near = nearest(read.name, made);
      refuse(block, text("reads ", read.name, ", which no block before it makes"), "an output of an earlier block",
             near ? text("did you mean '", *near, "'?") : "");
    }
    for (const TensorSpec& output : block.spec->outputs) made.push_back(output.name);
  }
}

// By block, and behind the last one: the names that it or a later block reads of what blocks before it make.
std::vector<std::set<std::string>> needed(const std::vector<BlockInstance>& blocks) {
  std::vector<std::set<std::string>> out(blocks.size() + 1);
  for (std::size_t b = blocks.size(); b-- > 0;) {
    out[b] = out[b + 1];
    for (const TensorSpec& made : blocks[b].spec->outputs) out[b].erase(made.name);
    for (const TensorSpec& read : blocks[b].spec->inputs) out[b].insert(read.name);
  }
  return out;
}

int place_of(const TensorSpec& read, const std::vector<TensorSpec>& before, const BlockInstance& block) {
  const auto found = std::find_if(before.begin(), before.end(), [&](const TensorSpec& tensor) { return tensor.name == read.name; });
  if (found->shape != read.shape)
    refuse(block, text("reads ", read.name, " as ", shape_text(read), ", and it is made as ", shape_text(*found)), "the same shape");
  return static_cast<int>(found - before.begin());
}

}  // namespace

std::vector<BlockFlow> tensor_flow(const ModelSpec& model) {
  const std::vector<BlockInstance> blocks = model.blocks();
  check_reads(blocks);
  const std::vector<std::set<std::string>> needed_at = needed(blocks);
  std::vector<BlockFlow> flow(blocks.size());
  std::vector<TensorSpec> before;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockSpec& spec = *blocks[b].spec;
    flow[b].before = std::move(before);
    for (const TensorSpec& read : spec.inputs) flow[b].reads.push_back(place_of(read, flow[b].before, blocks[b]));
    before = {};
    if (b + 1 == blocks.size()) break;
    for (std::size_t i = 0; i < flow[b].before.size(); ++i) {
      const std::string& name = flow[b].before[i].name;
      const bool made_anew =
          std::any_of(spec.outputs.begin(), spec.outputs.end(), [&](const TensorSpec& made) { return made.name == name; });
      if (made_anew || !needed_at[b + 1].contains(name)) continue;
      flow[b].after.push_back(-1 - static_cast<int>(i));
      before.push_back(flow[b].before[i]);
    }
    for (std::size_t i = 0; i < spec.outputs.size(); ++i) {
      if (spec.outputs[i].shape.empty()) continue;  // a loss
      if (!needed_at[b + 1].contains(spec.outputs[i].name))
        refuse(blocks[b], text("makes ", spec.outputs[i].name, ", which no block behind it reads"), "outputs that later blocks read");
      flow[b].after.push_back(static_cast<int>(i));
      before.push_back(spec.outputs[i]);
    }
  }
  return flow;
}

std::vector<std::int64_t> elements_before(const std::vector<BlockFlow>& flow) {
  std::vector<std::int64_t> out;
  for (const BlockFlow& block : flow) {
    std::int64_t elements = 0;
    for (const TensorSpec& tensor : block.before)
      elements += std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
    out.push_back(elements);
  }
  return out;
}

}  // namespace tessera::model
