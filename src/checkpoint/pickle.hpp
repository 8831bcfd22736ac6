// Internal: what a pickle says, without running anything of it: classes and functions stay names, and calls of them stay calls. No torch
// here, so that it can be built without it. https://docs.python.org/3/library/pickletools.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

struct PickledValue {
  enum class Kind {
    other,       // None, and what no weights consist of: sets, bytes, long integers
    boolean,     // `integer` is 0 or 1
    integer,     //
    real,        //
    text,        //
    global,      // `text` is "module name"
    sequence,    // a tuple or a list of `items`
    map,         // `items` are keys and values in turn; an OrderedDict, too
    call,        // of items[0], a global, with the arguments items[1]
    persistent,  // what stands outside the pickle, by the identity items[0]
  };
  Kind kind = Kind::other;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<const PickledValue*> items;

  bool is_call_of(std::string_view global) const;
  // For a map: the value of a text key; nullptr if there is none.
  const PickledValue* find(std::string_view key) const;
};

// A pickle of protocol 2 to 5. Values may hold themselves, directly or not.
class Pickle {
 public:
  // Throws corrupt, naming the file, where the bytes do not begin with a pickle.
  Pickle(std::span<const std::byte> bytes, const std::filesystem::path& file);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickledValue& root() const { return *root_; }
  const std::deque<PickledValue>& values() const { return values_; }  // all of them
  std::size_t size() const { return size_; }                          // bytes

 private:
  friend class PickleReader;
  std::deque<PickledValue> values_;
  const PickledValue* root_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tessera::checkpoint
