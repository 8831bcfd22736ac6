#include <algorithm>
#include <set>
#include <utility>

#include "program/passes.hpp"

namespace tessera::program {
namespace {

bool is_backward(Op op) { return op == Op::backward || op == Op::backward_input || op == Op::backward_weight; }
bool is_pass(Op op) { return op == Op::forward || is_backward(op); }

class ShardWriter {
 public:
  ShardWriter(Program& program, int loss_block, Bytes element) : program_(program), loss_block_(loss_block), element_(element) {}

  std::map<int, int> write(PassResult& passes) {
    std::swap(program_.instructions, before_);
    place_.assign(before_.size(), -1);
    for (std::size_t i = 0; i < before_.size(); ++i) {
      Instruction& instruction = before_[i];
      for (int& dependency : instruction.after) dependency = place_[dependency];
      if (is_pass(instruction.op)) {
        add_pass(instruction, static_cast<int>(i));
      } else {
        place_[i] = append(program_, std::move(instruction));
        if (const Instruction& made = program_.instructions.back(); made.op == Op::optimizer_step) steps_[made.bucket] = place_[i];
      }
    }
    const auto moved = [&](int& index) {
      if (index >= 0) index = place_[index];
    };
    moved(passes.last_forward);
    for (auto& completes : passes.completes)
      for (auto& [block, index] : completes) moved(index);
    return std::move(reduced_);
  }

 private:
  std::set<int> reads(const Instruction& pass) const {
    return buckets(pass, 3, [&](const Bucket&) { return true; });
  }

  std::set<int> adds_to(const Instruction& pass) const {
    if (!program_.training || pass.op == Op::backward_input) return {};
    return buckets(pass, 2, [&](const Bucket& bucket) {
      return pass.op != Op::forward || (pass.last_block > loss_block_ && loss_block_ >= pass.first_block &&
                                        std::binary_search(bucket.blocks.begin(), bucket.blocks.end(), loss_block_));
    });
  }

  // Those from a ZeRO stage on whose parameters the blocks of the pass read.
  template <typename Holds>
  std::set<int> buckets(const Instruction& pass, int zero, const Holds& holds) const {
    std::set<int> out;
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      if (bucket.zero < zero || !holds(bucket)) continue;
      const auto first = std::lower_bound(bucket.blocks.begin(), bucket.blocks.end(), pass.first_block);
      if (first != bucket.blocks.end() && *first < pass.last_block) out.insert(static_cast<int>(b));
    }
    return out;
  }

  // Gathers what the pass reads and the rank does not hold. With delayed reductions it waits for the step of the step before, and leaves
  // out what that has not come to.
  void gather(const Instruction& pass, const std::vector<int>& after) {
    for (const int b : reads(pass)) {
      std::vector<int> waits = after;
      if (const auto step = steps_.find(b); step != steps_.end())
        waits.push_back(step->second);
      else if (program_.delayed)
        continue;
      if (!held_.insert(b).second) continue;
      const Bucket& bucket = program_.buckets[b];
      gathered_[b] = append(
          program_, {Op::gather_parameters, pass.micro_batch, -1, -1, -1, b, bucket.group, bucket.count * element_, std::move(waits)});
    }
  }

  void add_pass(Instruction& pass, int index) {
    gather(pass, {});
    const auto next = std::find_if(before_.begin() + index + 1, before_.end(), [](const Instruction& each) { return is_pass(each.op); });
    const std::set<int> now = reads(pass), later = next != before_.end() ? reads(*next) : std::set<int>();
    if (next != before_.end()) gather(*next, last_pass_ >= 0 ? std::vector<int>{last_pass_} : std::vector<int>{});
    for (const int b : now)
      if (const auto gather = gathered_.extract(b)) pass.after.push_back(gather.mapped());
    for (const int b : adds_to(pass)) {
      pass.adds_to.push_back(b);
      if (const auto reduction = under_way_.extract(b)) pass.after.push_back(reduction.mapped());
    }
    // Beside the gradients of a pass only those of one pass before it are held whole, as costs count them.
    if (!pass.adds_to.empty()) pass.after.insert(pass.after.end(), reduced_before_.begin(), reduced_before_.end());
    for (const int b : now)
      if (!later.contains(b)) {
        pass.releases.push_back(b);
        held_.erase(b);
      }
    const Instruction made = pass;
    last_pass_ = place_[index] = append(program_, std::move(pass));
    if (is_backward(made.op)) reduce(made);
  }

  void reduce(const Instruction& pass) {
    std::vector<int> reductions;
    for (const int b : pass.adds_to) {
      const Bucket& bucket = program_.buckets[b];
      if (bucket.blocks.front() < pass.first_block) continue;
      // What is added up must be there.
      std::vector<int> after = {last_pass_};
      if (const auto before = reduced_.find(b); before != reduced_.end()) after.push_back(before->second);
      reduced_[b] = under_way_[b] = append(
          program_, {Op::reduce_gradients, pass.micro_batch, -1, -1, -1, b, bucket.group, bucket.count * Bytes(4), std::move(after)});
      reductions.push_back(reduced_[b]);
    }
    if (!reductions.empty()) reduced_before_ = std::exchange(reduced_last_, std::move(reductions));
  }

  Program& program_;
  const int loss_block_;
  const Bytes element_;
  std::vector<Instruction> before_;  // the program without exchanges of the state
  std::vector<int> place_;           // by index into before_: index into the program
  int last_pass_ = -1;
  std::set<int> held_;               // ZeRO-3: buckets that are gathered, or being so
  std::map<int, int> gathered_;      // of these, the gathers that no pass has waited for
  std::map<int, int> steps_;         // with delayed reductions: bucket -> its optimizer step
  std::map<int, int> under_way_;     // reductions that no pass has waited for
  std::map<int, int> reduced_;       // the last reductions
  std::vector<int> reduced_last_;    // the reductions of the last pass that had some
  std::vector<int> reduced_before_;  // and those of the pass before that
};

}  // namespace

std::map<int, int> add_shard_exchanges(Program& program, PassResult& passes, int loss_block, Bytes element) {
  if (std::ranges::none_of(program.buckets, [](const Bucket& bucket) { return bucket.zero >= 2; })) return {};
  return ShardWriter(program, loss_block, element).write(passes);
}

}  // namespace tessera::program
