#include "checkpoint/pickle.hpp"

#include <bit>
#include <unordered_map>

#include "base/error.hpp"

namespace tessera::checkpoint {

using Kind = PickledValue::Kind;

bool PickledValue::is_call_of(std::string_view global) const {
  return kind == Kind::call && items.front()->kind == Kind::global && items.front()->text == global;
}

const PickledValue* PickledValue::find(std::string_view key) const {
  if (kind != Kind::map) return nullptr;
  for (std::size_t i = 0; i < items.size(); i += 2)
    if (items[i]->kind == Kind::text && items[i]->text == key) return items[i + 1];
  return nullptr;
}

// The stack machine of pickles: https://github.com/python/cpython/blob/main/Lib/pickletools.py lists its operations.
class PickleReader {
 public:
  PickleReader(Pickle& pickle, std::span<const std::byte> bytes, const std::filesystem::path& file)
      : pickle_(pickle), bytes_(bytes), file_(file) {}

  void run() {
    constexpr std::uint64_t kProtocol = 0x80;
    if (number(1) != kProtocol) refuse("it does not begin as one of protocol 2 or later does");
    for (place_ = 0; operate(static_cast<unsigned char>(number(1)));) {}
    pickle_.root_ = pop();
    pickle_.size_ = place_;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Error(ErrorCode::corrupt, text("not a pickle that can be read: ", problem, ", at its byte ", place_),
                {file_.string(), 0, 0, -1, {}}, {}, "the file is damaged, or no state dict that torch.save wrote");
  }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - place_) refuse("it ends early");
    const auto out = bytes_.subspan(place_, static_cast<std::size_t>(count));
    place_ += static_cast<std::size_t>(count);
    return out;
  }
  // Little endian.
  std::uint64_t number(std::size_t size) {
    std::uint64_t out = 0;
    const auto bytes = take(size);
    for (std::size_t i = 0; i < size; ++i) out |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
    return out;
  }
  std::string characters(std::uint64_t count) {
    const auto bytes = take(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string line() {
    std::string out;
    for (char c = static_cast<char>(number(1)); c != '\n'; c = static_cast<char>(number(1))) out += c;
    return out;
  }

  PickledValue& push(Kind kind) {
    PickledValue& made = pickle_.values_.emplace_back();
    made.kind = kind;
    stack_.push_back(&made);
    return made;
  }
  PickledValue& push_integer(std::int64_t value, Kind kind = Kind::integer) {
    PickledValue& made = push(kind);
    made.integer = value;
    return made;
  }
  PickledValue* pop() {
    if (stack_.empty() || stack_.back() == nullptr) refuse("it takes a value where there is none");
    PickledValue* top = stack_.back();
    stack_.pop_back();
    return top;
  }
  PickledValue& top() {
    PickledValue* value = pop();
    stack_.push_back(value);
    return *value;
  }
  // Those behind the last mark, which goes as well.
  std::vector<const PickledValue*> pop_to_mark() {
    std::size_t first = stack_.size();
    while (first > 0 && stack_[first - 1] != nullptr) --first;
    if (first == 0) refuse("it takes values behind a mark that is not there");
    std::vector<const PickledValue*> out(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first - 1);
    return out;
  }
  void append(Kind kind, const std::vector<const PickledValue*>& items) {
    PickledValue& target = top();
    // Objects that pickle themselves as lists or maps are of no interest, and neither is what they hold.
    if (target.kind != kind) return;
    if (kind == Kind::map && items.size() % 2 != 0) refuse("it has a key without a value");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }
  void push_sequence(std::size_t count) {
    std::vector<const PickledValue*> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push(Kind::sequence).items = std::move(items);
  }
  void push_call() {
    const PickledValue* arguments = pop();
    const PickledValue* function = pop();
    if (function->kind == Kind::global && function->text == "collections OrderedDict" && arguments->items.empty()) {
      push(Kind::map);
      return;
    }
    push(Kind::call).items = {function, arguments};
  }
  void push_long(std::uint64_t size) {
    const auto bytes = take(size);
    if (size > 8) {
      push(Kind::other).text = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return;
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
    if (size > 0 && size < 8 && (static_cast<unsigned>(bytes.back()) & 0x80u) != 0) value |= ~std::uint64_t{0} << (8 * size);
    push_integer(static_cast<std::int64_t>(value));
  }
  void push_memo(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("it refers to a value that it does not have");
    stack_.push_back(found->second);
  }

  // False at the end.
  bool operate(unsigned char operation) {
    switch (operation) {
      case 0x80: take(1); break;  // protocol
      case 0x95: take(8); break;  // frame
      case '.': return false;
      case '(': stack_.push_back(nullptr); break;
      case '0': pop(); break;
      case '1': pop_to_mark(); break;
      case '2': stack_.push_back(&top()); break;
      case 'N': push(Kind::other); break;
      case 0x88: push_integer(1, Kind::boolean); break;
      case 0x89: push_integer(0, Kind::boolean); break;
      case 'J': push_integer(static_cast<std::int32_t>(number(4))); break;
      case 'K': push_integer(static_cast<std::int64_t>(number(1))); break;
      case 'M': push_integer(static_cast<std::int64_t>(number(2))); break;
      case 0x8a: push_long(number(1)); break;
      case 0x8b: push_long(number(4)); break;
      case 'G': push(Kind::real).real = std::bit_cast<double>(__builtin_bswap64(number(8))); break;
      case 'X': push_text(number(4)); break;
      case 0x8c: push_text(number(1)); break;
      case 0x8d: push_text(number(8)); break;
      case 'U': push_text(number(1)); break;
      case 'T': push_text(number(4)); break;
      case 'C': take(number(1)), push(Kind::other); break;
      case 'B': take(number(4)), push(Kind::other); break;
      case 0x8e: take(number(8)), push(Kind::other); break;
      case 0x96: take(number(8)), push(Kind::other); break;
      case ')': push_sequence(0); break;
      case 0x85: push_sequence(1); break;
      case 0x86: push_sequence(2); break;
      case 0x87: push_sequence(3); break;
      case 't':
      case 'l': {
        auto items = pop_to_mark();
        push(Kind::sequence).items = std::move(items);
        break;
      }
      case ']': push(Kind::sequence); break;
      case 'a': {
        const PickledValue* item = pop();
        append(Kind::sequence, {item});
        break;
      }
      case 'e': {
        const auto items = pop_to_mark();
        append(Kind::sequence, items);
        break;
      }
      case '}': push(Kind::map); break;
      case 's': {
        const PickledValue* value = pop();
        const PickledValue* key = pop();
        append(Kind::map, {key, value});
        break;
      }
      case 'u': {
        const auto items = pop_to_mark();
        append(Kind::map, items);
        break;
      }
      case 0x8f: push(Kind::other); break;  // a set
      case 0x90: pop_to_mark(); break;      // what is added to it
      case 0x91: pop_to_mark(), push(Kind::other); break;
      case 'c': {
        const std::string module = line();
        push(Kind::global).text = module + " " + line();
        break;
      }
      case 0x93: {
        const PickledValue* name = pop();
        const PickledValue* module = pop();
        push(Kind::global).text = module->text + " " + name->text;
        break;
      }
      case 'R':
      case 0x81: push_call(); break;
      case 0x92: pop(), push_call(); break;  // keyword arguments
      case 'b': pop(), top(); break;         // attributes of an object
      case 'Q': {
        const PickledValue* identity = pop();
        push(Kind::persistent).items = {identity};
        break;
      }
      case 'q': memo_[number(1)] = &top(); break;
      case 'r': memo_[number(4)] = &top(); break;
      case 0x94: memo_.emplace(memo_.size(), &top()); break;
      case 'h': push_memo(number(1)); break;
      case 'j': push_memo(number(4)); break;
      default: refuse(text("it has an operation ", static_cast<int>(operation)));
    }
    return true;
  }
  void push_text(std::uint64_t count) {
    std::string value = characters(count);
    push(Kind::text).text = std::move(value);
  }

  Pickle& pickle_;
  std::span<const std::byte> bytes_;
  const std::filesystem::path& file_;
  std::size_t place_ = 0;
  std::vector<PickledValue*> stack_;  // nullptr: a mark
  std::unordered_map<std::uint64_t, PickledValue*> memo_;
};

Pickle::Pickle(std::span<const std::byte> bytes, const std::filesystem::path& file) { PickleReader(*this, bytes, file).run(); }

}  // namespace tessera::checkpoint
