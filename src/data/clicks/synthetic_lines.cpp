#include "base/hash.hpp"
#include "base/random.hpp"
#include "data/clicks/click_lines.hpp"
#include "data/clicks/keys.hpp"

namespace tessera::data {
namespace {

class SyntheticLines final : public ClickLines {
 public:
  SyntheticLines(const ClickShape& shape, std::uint64_t seed) : shape_(shape), seed_(seed) {}
  std::int64_t size() const override { return (1 << 20) + 4096; }
  void read(std::int64_t index, const ClickRoom& room) const override {
    Random random = random_of(index);
    room.label = random.below(4) == 0 ? 1 : 0;
    for (float& value : room.dense) value = static_cast<float>(4 * random.uniform());
    for (std::size_t i = 0; i < room.keys.size(); ++i) room.keys[i] = key_in(i / static_cast<std::size_t>(shape_.lookups), random);
    const std::uint64_t length = room.history.empty() ? 0 : random.below(room.history.size() + 1);
    for (std::size_t i = 0; i < room.history.size(); ++i) room.history[i] = i < length ? key_in(shape_.target, random) : kNoKey;
  }
  bool clicked(std::int64_t index) const override { return random_of(index).below(4) == 0; }
  std::uint64_t content_hash() const override { return seed_; }
  std::uint64_t source_hash() const override { return 0; }

 private:
  Random random_of(std::int64_t index) const { return Random(seed_of(seed_, static_cast<std::uint64_t>(index), 0x636C6963)); }
  std::uint64_t key_in(std::size_t table, Random& random) const {
    constexpr std::uint64_t kUnbounded = 1 << 20;
    return key_of(table, random.below(shape_.rows[table] > 0 ? static_cast<std::uint64_t>(shape_.rows[table]) : kUnbounded));
  }

  ClickShape shape_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<ClickLines> make_synthetic_lines(const ClickShape& shape, std::uint64_t seed) {
  return std::make_unique<SyntheticLines>(shape, seed);
}

}  // namespace tessera::data
