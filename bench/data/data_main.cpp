// Our side of the data benchmark. Reads lines "encode TOKENIZER TEXT" and "train VOCAB TEXT" and answers each with the seconds
// that it took and the number of tokens; tokenizers stay loaded between lines.
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "data/data.hpp"

namespace {

using namespace tessera;

std::map<std::string, std::unique_ptr<data::Tokenizer>> tokenizers;

std::size_t encode(const std::string& file, const std::string& text) { return tokenizers[file]->encode(text).size(); }

std::size_t train(std::int64_t vocab, const std::string& text) {
  data::BpeTrainer trainer;
  trainer.add(text);
  return static_cast<std::size_t>(trainer.train(vocab)->vocab_size());
}

void answer(const std::string& line) {
  std::istringstream words(line);
  std::string command, argument, file;
  words >> command >> argument >> file;
  const std::string text = read_whole(file);
  if (command == "encode" && !tokenizers[argument]) tokenizers[argument] = data::load_tokenizer(argument);
  const Seconds begin = real_clock().now();
  const std::size_t count = command == "encode" ? encode(argument, text) : train(std::stoll(argument), text);
  std::printf("{\"seconds\": %.6f, \"count\": %zu}\n", (real_clock().now() - begin).value, count);
  std::fflush(stdout);
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) answer(line);
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.code());
  }
}
