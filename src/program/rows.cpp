#include <algorithm>

#include "base/error.hpp"
#include "model/forms.hpp"
#include "program/passes.hpp"

namespace tessera::program {

void add_pull(Program& program, int block, const model::BlockSpec& tables) {
  // Those of all micro-batches, at most: where no key repeats.
  const std::int64_t lookups = program.cut_of(block).micro_batch_size * program.micro_batches * model::lookups_of_sample(tables);
  program.instructions.push_back({Op::pull_rows, -1, block, block + 1, -1, -1, -1, lookups * bytes_of_row(tables.dim("dim")), {}});
}

int wait_for_pull(Program& program) {
  std::vector<Instruction>& all = program.instructions;
  const auto pull = std::find_if(all.begin(), all.end(), [](const Instruction& each) { return each.op == Op::pull_rows; });
  ensure(pull != all.end(), "a program that reads tables pulls rows");
  const auto reader = std::find_if(all.begin(), all.end(), [&](const Instruction& each) {
    return each.op == Op::forward && each.first_block <= pull->first_block && pull->first_block < each.last_block;
  });
  const int index = static_cast<int>(pull - all.begin());
  (program.rows_ahead ? reader->after_previous : reader->after).push_back(index);
  return index;
}

void add_push(Program& program, int block, std::vector<int> after) {
  const int pull = wait_for_pull(program);
  Instruction& pulled = program.instructions[pull];
  // A server takes what a rank asks for in order: the next pull sees the push.
  pulled.after_previous = {static_cast<int>(program.instructions.size())};
  const Bytes bytes = pulled.bytes;
  program.instructions.push_back({Op::push_rows, -1, block, block + 1, -1, -1, -1, bytes, std::move(after)});
}

}  // namespace tessera::program
