// What ranks tell each other: frames of the control channel and of the rendezvous.
#include <span>

#include "comm/control_messages.hpp"
#include "comm/frames.hpp"
#include "comm/proof.hpp"
#include "comm/rendezvous_messages.hpp"
#include "fuzz/checks.hpp"

namespace tessera::fuzz {
namespace {

using namespace comm;
using nlohmann::json;

constexpr int kWorld = 4;

// What stands in the first frame, and in those behind it.
std::string body_of(const std::string& frame) { return frame.size() < 4 ? frame : frame.substr(4); }

std::string framed(const std::string& body) {
  std::string frame;
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(body.size() >> shift & 0xff));
  return frame + body;
}

Target target_of_frames(const std::vector<json>& seeds, const std::function<void(const json&)>& read) {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  for (const json& seed : seeds) target.seeds.push_back(frame_of(seed));
  target.inner = body_of;
  target.outer = framed;
  // As from a connection: never more at once than there is room for.
  target.read = [read](const std::string& input) {
    FrameBuffer buffer;
    for (std::size_t at = 0; at < input.size();) {
      const std::string_view some = std::string_view(input).substr(at, buffer.room());
      if (some.empty()) throw Defect("a full buffer holds no message");
      buffer.append(some);
      at += some.size();
      while (const auto message = buffer.next()) read(*message);
    }
  };
  return target;
}

// Reads with each of them; refused by all, the message is refused.
class Readers {
 public:
  template <typename Message>
  void try_one(const Message& input, const std::function<std::string(const Message&)>& written,
               const std::function<Message(const std::string&)>& again) {
    try {
      const std::string first = written(input);
      read_ = true;
      must_pass("what was written is refused", [&] { must_be_equal(first, written(again(first)), "the message"); });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt) throw;
      refusal_ = error;
    }
  }
  void end() const {
    if (!read_) throw refusal_;
  }

 private:
  bool read_ = false;
  Error refusal_{ErrorCode::internal, "no reader was tried"};
};

const Introduction kSomebody{std::string("\x00\xff address", 10), "boot net pid", 4711, 9, ~std::uint64_t{0}, "GPU uuid"};

}  // namespace

Target control_target() {
  const std::vector<ControlMessage> seeds = {Heartbeat{},
                                             Heartbeat{{0, 2, 3}},
                                             Heartbeat{{1}, "forward of micro-batch 3", {{1, "optimizer step"}, {2, "waiting"}}},
                                             Failure{ErrorCode::peer_lost, 2, "rank 2 is lost: \u00e9"},
                                             Failure{ErrorCode::internal, -1, ""},
                                             Closing{3, {}},
                                             Closing{1, {{1, 7}, {~std::uint64_t{0}, 1}}},
                                             End{}};
  std::vector<json> messages;
  for (const ControlMessage& seed : seeds) messages.push_back(to_json(seed));
  return target_of_frames(messages, [](const json& message) {
    const json first = to_json(control_message_from(message, kWorld));
    must_pass("what was written is refused",
              [&] { must_be_equal(first.dump(), to_json(control_message_from(first, kWorld)).dump(), "the message"); });
  });
}

Target rendezvous_target() {
  const std::string nonce(kNonceBytes, 'n');
  const std::string proof(kProofBytes, 'p');
  const std::vector<json> seeds = {to_json(Greeting{nonce}), to_json(Challenge{nonce, proof}),
                                   to_json(Sealed{to_body(Claim{"task", 1, kWorld, kSomebody}), proof}), reached_to_json({0, 2}),
                                   all_reached_to_json({{1}, {0}, {}, {0, 1, 2}})};
  return target_of_frames(seeds, [](const json& message) {
    Readers readers;
    const std::function<json(const std::string&)> parsed = [](const std::string& text) { return json::parse(text); };
    const auto try_one = [&](const auto& round) {
      readers.try_one<json>(
          message, [&](const json& input) { return json(round(input)).dump(); }, parsed);
    };
    try_one([](const json& input) { return to_json(greeting_from(input)); });
    try_one([](const json& input) { return to_json(challenge_from(input)); });
    try_one([](const json& input) { return to_json(sealed_from(input)); });
    try_one([](const json& input) { return reached_to_json(reached_from(input, kWorld)); });
    try_one([](const json& input) { return all_reached_to_json(all_reached_from(input, kWorld)); });
    readers.end();
  });
}

// The bodies of sealed messages: who a rank is, and who all are.
Target claim_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  target.seeds = {to_body(Claim{"task", 1, kWorld, kSomebody}), to_body(Answer(Roll{{kSomebody, {}, kSomebody, {}}})),
                  to_body(Answer(Absence{{1, 3}})), to_body(Answer(Refusal{"rank 1 is there already"}))};
  target.read = [](const std::string& input) {
    Readers readers;
    const std::function<std::string(const std::string&)> same = [](const std::string& text) { return text; };
    readers.try_one<std::string>(
        input, [](const std::string& body) { return to_body(claim_from(body)); }, same);
    readers.try_one<std::string>(
        input, [](const std::string& body) { return to_body(answer_from(body, kWorld)); }, same);
    readers.end();
  };
  return target;
}

}  // namespace tessera::fuzz
