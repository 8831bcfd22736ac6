#include "data/clicks/left_out.hpp"

#include <algorithm>

#include "data/in_file.hpp"

namespace tessera::data {
namespace {

constexpr std::size_t kNamed = 3;
constexpr std::int64_t kLeastBudget = 10;
constexpr std::int64_t kShareOfBudget = 100;

}  // namespace

void LeftOutLines::add(std::int64_t number, const std::string& problem) {
  if (first_.size() < kNamed) first_.push_back(number);
  if (count_ == 0) first_problem_ = problem;
  ++count_;
  if (skips_ && count_ <= std::max(kLeastBudget, number / kShareOfBudget)) return;
  throw Error(
      ErrorCode::corrupt,
      skips_ ? text(count_, " of the first ", number, " ", what_, "s cannot be read; of this one, ", problem)
             : text("the ", what_, " cannot be read: ", problem),
      in_file(file_, static_cast<int>(number)), what_ + "s as data.format says",
      skips_ ? "another data.format, or a file that is whole" : text("data.on_error: skip leaves such ", what_, "s out and counts them"));
}

std::string LeftOutLines::note() const {
  if (count_ == 0) return {};
  std::string numbers;
  for (const std::int64_t number : first_) numbers += text(numbers.empty() ? "" : ", ", number);
  if (count_ > std::ssize(first_)) numbers += ", ...";
  return text(file_.string(), ": ", count_, " ", what_, "s cannot be read and were left out (", numbers, "); of the first, ",
              first_problem_);
}

}  // namespace tessera::data
