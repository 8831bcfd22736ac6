#include "fuzz/mutate.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/error.hpp"

namespace tessera::fuzz {
namespace {

// Where numbers, types, encodings and parsers end.
const std::string kWords[] = {"0",
                              "-0",
                              "1",
                              "-1",
                              "2",
                              "3",
                              "1.5",
                              "1048576",
                              "1048577",
                              "2147483647",
                              "2147483648",
                              "-2147483648",
                              "4294967296",
                              "9007199254740993",
                              "4611686018427387904",
                              "9223372036854775807",
                              "-9223372036854775808",
                              "9223372036854775808",
                              "18446744073709551615",
                              "1e308",
                              "-1e308",
                              "1e309",
                              "1e-320",
                              "1e18",
                              "1e19",
                              ".inf",
                              "-.inf",
                              ".nan",
                              "nan",
                              "0x7fffffff",
                              "0o17",
                              "1_000",
                              "+1",
                              "1e6",
                              "",
                              "~",
                              "null",
                              "true",
                              "false",
                              "yes",
                              "auto",
                              "8 EiB",
                              "9e18 B",
                              "7999999 TiB",
                              "-1 GiB",
                              "1e300 TB/s",
                              "0 GB/s",
                              "1e-300 GB/s",
                              "1 fortnight",
                              "../../../../etc/passwd",
                              "/dev/zero",
                              ".",
                              "..",
                              "/",
                              "\xff\xfe",
                              "\xc3\x28",
                              "\xf0\x9f\xa6\x91",
                              "\xe2\x80\xae",
                              std::string(1, '\0'),
                              "a\nb",
                              "%",
                              "@",
                              "`",
                              "|",
                              ">",
                              "- -",
                              "? :",
                              "!!binary x",
                              "!!int 1",
                              "---",
                              "...",
                              "&a [*a]",
                              "&a {x: *a}",
                              "*a",
                              "<<",
                              "{<<: *a}",
                              "[]",
                              "{}",
                              "[[]]",
                              "[{}, [], 1]"};

std::string alias_bomb(std::size_t levels) {
  std::string out = "[&a0 [x, x, x, x, x, x, x, x, x]";
  for (std::size_t i = 1; i <= levels; ++i) {
    out += text(", &a", i, " [");
    for (int j = 0; j < 9; ++j) out += text(j == 0 ? "*a" : ", *a", i - 1);
    out += "]";
  }
  return out + "]";
}

std::string repeated(const std::string& part, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += part;
  return out;
}

}  // namespace

Mutator::Mutator(std::uint64_t seed, const std::vector<std::string>& seeds) : random_(seed), words_(std::begin(kWords), std::end(kWords)) {
  for (const std::string& text : seeds) {
    std::optional<Tree> tree = read_tree(text);
    if (!tree) continue;
    for (Tree* value : values_of(*tree)) {
      keys_.insert(keys_.end(), value->keys.begin(), value->keys.end());
      if (value->kind == Tree::Kind::scalar) words_.push_back(value->text);
    }
  }
  const auto tidy = [](std::vector<std::string>& words) {
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
  };
  tidy(keys_);
  tidy(words_);
  if (keys_.empty()) keys_.emplace_back("key");
}

std::string Mutator::word() {
  if (once_in(40)) return std::string(1 + below(6000), once_in(2) ? 'x' : '9');
  if (once_in(60)) return alias_bomb(1 + below(12));
  if (once_in(8)) return keys_[below(keys_.size())];
  return words_[below(words_.size())];
}

void Mutator::change_value(Tree& value, const std::vector<Tree*>& all) {
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
  const bool is_number = value.kind == Tree::Kind::scalar && problem == std::errc() && end == value.text.data() + value.text.size();
  if (is_number && once_in(2)) {
    const std::uint64_t from = static_cast<std::uint64_t>(number);
    const std::uint64_t to[] = {from + 1, from - 1, from * 2, from / 2, 0 - from, from << below(63), below(64), from * from};
    value.text = text(static_cast<std::int64_t>(to[below(std::size(to))]));
    return;
  }
  switch (below(6)) {
    case 0: value = {Tree::Kind::list, {}, false, {}, {Tree(value)}}; break;
    case 1: value = {Tree::Kind::map, {}, false, {keys_[below(keys_.size())]}, {Tree(value)}}; break;
    case 2: value = Tree(*all[below(all.size())]); break;
    case 3:
      if (once_in(6)) {
        const std::size_t depth = 1 + below(once_in(4) ? 4000 : 40);
        value = {
            Tree::Kind::scalar,
            once_in(2) ? std::string(depth, '[') + "1" + std::string(depth, ']') : repeated("{a: ", depth) + "1" + std::string(depth, '}'),
            false,
            {},
            {}};
        break;
      }
      [[fallthrough]];
    default: value = {Tree::Kind::scalar, word(), once_in(4), {}, {}};
  }
}

void Mutator::change_children(Tree& parent) {
  const std::size_t count = parent.children.size();
  const std::size_t at = below(count);
  const bool map = parent.kind == Tree::Kind::map;
  const auto insert = [&](std::size_t place, std::string key, Tree child) {
    if (map) parent.keys.insert(parent.keys.begin() + static_cast<std::ptrdiff_t>(place), std::move(key));
    parent.children.insert(parent.children.begin() + static_cast<std::ptrdiff_t>(place), std::move(child));
  };
  switch (count == 0 ? 0 : below(6)) {
    case 0: insert(below(count + 1), keys_[below(keys_.size())], {Tree::Kind::scalar, word(), once_in(4), {}, {}}); break;
    case 1:
      parent.children.erase(parent.children.begin() + static_cast<std::ptrdiff_t>(at));
      if (map) parent.keys.erase(parent.keys.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 2: insert(at, map ? parent.keys[at] : std::string(), Tree(parent.children[at])); break;
    case 3: {
      const Tree child = parent.children[at];
      for (std::size_t more = once_in(8) ? below(400) : below(9); more > 0; --more)
        insert(at, map ? parent.keys[at] : std::string(), child);
      break;
    }
    case 4:
      if (map) {
        std::string& key = parent.keys[at];
        key = once_in(2) ? keys_[below(keys_.size())] : once_in(2) ? key + "x" : word();
      }
      break;
    default: std::swap(parent.children[at], parent.children[below(count)]);
  }
}

void Mutator::change_tree(Tree& tree) {
  const std::vector<Tree*> all = values_of(tree);
  Tree& value = *all[below(all.size())];
  if (value.kind != Tree::Kind::scalar && !once_in(5))
    change_children(value);
  else
    change_value(value, all);
}

void Mutator::change_bytes(std::string& text, const std::string& other) {
  const std::size_t at = below(text.size() + 1);
  const std::size_t length = std::min(text.size() - at, once_in(3) ? below(text.size() + 1) : 1 + below(8));
  switch (below(7)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ (1U << below(8)));
      break;
    case 1: text.erase(at, length); break;
    case 2: text.resize(at); break;
    case 3: text.insert(at, word()); break;
    case 4: text.insert(at, repeated(text.substr(at, length), below(4))); break;
    case 5: {
      const std::size_t from = below(other.size() + 1);
      text.replace(at, length, other.substr(from, once_in(2) ? std::string::npos : below(64)));
      break;
    }
    default: text.insert(at, 1, static_cast<char>(below(256)));
  }
}

std::string Mutator::changed(const std::string& text, const std::string& other) {
  std::string out = text;
  if (!once_in(5)) {
    if (std::optional<Tree> tree = read_tree(text)) {
      for (std::size_t more = once_in(3) ? 1 + below(5) : 1; more > 0; --more) change_tree(*tree);
      out = write_tree(*tree, once_in(2));
      if (!once_in(12)) return out;
    }
  }
  for (std::size_t more = 1 + below(4); more > 0; --more) change_bytes(out, other);
  return out;
}

}  // namespace tessera::fuzz
