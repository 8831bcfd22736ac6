#include "ps/planted_bugs_helper.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "ps/messages.hpp"

namespace tessera::ps::simulation {
namespace {

AskHeader header_of(std::span<const std::byte> message) {
  AskHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  return header;
}
void put_header(std::span<std::byte> message, const AskHeader& header) { std::memcpy(message.data(), &header, sizeof header); }

bool is_push(Ask ask) { return ask == Ask::push || ask == Ask::push_tickets; }

std::span<float> gradients_of(std::span<std::byte> message) {
  const AskHeader header = header_of(message);
  std::size_t before = sizeof header + header.count * sizeof(Key);
  if (header.ask == Ask::push_tickets) before += sizeof(std::uint64_t) + header.count * sizeof(Ticket);
  return {reinterpret_cast<float*>(message.data() + before), (message.size() - before) / sizeof(float)};
}

class TamperedLink final : public comm::Requester {
 public:
  TamperedLink(std::unique_ptr<comm::Requester> link, World& world) : link_(std::move(link)), world_(world) {}

  std::size_t servers() const override { return 1; }
  std::span<std::byte> next_request(std::size_t) override { return buffer_ = link_->next_request(0); }
  std::size_t under_way(std::size_t) const override { return told_.size(); }
  std::int64_t reconnections() const override { return 0; }

  void send(std::size_t, std::size_t bytes) override {
    const std::span<std::byte> message = buffer_.first(bytes);
    AskHeader header = header_of(message);
    switch (world_.bug) {
      case Bug::leader_answers_before_its_backup: return pass(message, is_numbered(header.ask) ? Told::nothing : Told::all);
      case Bug::backup_misses_pushes:
        if (is_push(header.ask) && world_.chance(4)) std::ranges::fill(gradients_of(message), 0.0f);
        break;
      case Bug::backup_misses_ends_of_steps:
        if (header.ask == Ask::end_step && world_.chance(4)) {
          header.ask = Ask::push;
          put_header(message, header);
        }
        break;
      case Bug::backup_misses_ends_of_periods:
        if (header.ask == Ask::end_period && world_.chance(2)) {
          header.ask = Ask::push;
          put_header(message, header);
        }
        break;
      case Bug::backup_has_pushes_in_another_order:
        if (is_push(header.ask) && kept_.empty()) {
          kept_.assign(message.begin(), message.end());
          told_.push_back(Told::nothing);
          return;
        }
        if (!kept_.empty()) {
          const std::vector<std::byte> kept = std::exchange(kept_, {});
          pass(message, Told::all);
          pass_below(kept, Told::nothing);
          return;
        }
        break;
      case Bug::copy_without_clients:
      case Bug::copy_without_results:
        if (header.ask == Ask::copy_begin) return pass_changed(message, header);
        break;
      case Bug::copy_without_sums:
        if (header.ask == Ask::copy_sums) return told_.push_back(Told::nothing);
        break;
      case Bug::copy_without_rows:
        if (header.ask == Ask::copy_rows) return told_.push_back(Told::nothing);
        break;
      case Bug::copy_without_waiting:
        if (header.ask == Ask::copy_waiting) return told_.push_back(Told::nothing);
        break;
      case Bug::one_that_begins_asks_without_a_name:
        if (header.ask == Ask::who_leads) header.client = world_.random.next();
        put_header(message, header);
        break;
      case Bug::copy_never_ends:
        if (header.ask == Ask::copy_end) return told_.push_back(Told::nothing);
        break;
      default: break;
    }
    pass(message, Told::all);
  }

  std::span<const std::byte> take_reply(std::size_t) override {
    const Told told = told_.front();
    told_.pop_front();
    if (told == Told::nothing) return {};
    while (below_.front() == Told::nothing) static_cast<void>(take_below());
    return take_below();
  }

 private:
  // What the leader is told of a message's reply.
  enum class Told { nothing, all };
  std::span<const std::byte> take_below() {
    below_.pop_front();
    return link_->take_reply(0);
  }
  void pass(std::span<const std::byte> message, Told told) {
    told_.push_back(told);
    pass_below(message, told);
  }
  void pass_below(std::span<const std::byte> message, Told told) {
    const std::vector<std::byte> copy(message.begin(), message.end());
    while (below_.size() == kMostUnderWay) static_cast<void>(take_below());
    std::ranges::copy(copy, link_->next_request(0).begin());
    link_->send(0, copy.size());
    below_.push_back(told);
  }
  void pass_changed(std::span<std::byte> message, AskHeader header) {
    const auto* const words = reinterpret_cast<const char*>(message.data() + sizeof header);
    nlohmann::json all = nlohmann::json::parse(words, words + header.count);
    nlohmann::json workers = nlohmann::json::parse(all.at("workers").get<std::string>());
    for (nlohmann::json& client : workers.at("clients")) {
      if (world_.bug == Bug::copy_without_clients) client.at("applied") = std::max(0, client.at("applied").get<int>() - 1);
      for (nlohmann::json& result : client.at("results"))
        if (world_.bug == Bug::copy_without_results) result = nlohmann::json();
    }
    all.at("workers") = workers.dump();
    const std::string changed = all.dump();
    header.count = changed.size();
    put_header(buffer_, header);
    std::memcpy(buffer_.data() + sizeof header, changed.data(), changed.size());
    pass(buffer_.first(sizeof header + changed.size()), Told::all);
  }

  std::unique_ptr<comm::Requester> link_;
  World& world_;
  std::span<std::byte> buffer_;
  std::deque<Told> told_, below_;  // of what the leader has sent, and of what was sent on
  std::vector<std::byte> kept_;
};

}  // namespace

std::unique_ptr<comm::Requester> tampered(std::unique_ptr<comm::Requester> link, World& world) {
  return std::make_unique<TamperedLink>(std::move(link), world);
}

void tamper_with_request(std::vector<std::byte>& message, World& world) {
  AskHeader header = header_of(message);
  if (is_push(header.ask) && world.bug == Bug::push_is_dropped && world.chance(8)) std::ranges::fill(gradients_of(message), 0.0f);
  if (is_push(header.ask) && world.bug == Bug::push_is_doubled && world.chance(8))
    for (float& gradient : gradients_of(message)) gradient *= 2;
  if (header.ask == Ask::end_step && world.bug == Bug::end_of_step_is_dropped && world.chance(8)) header.ask = Ask::push;
  if (header.ask == Ask::pull && (world.bug == Bug::pull_does_not_wait || world.bug == Bug::pull_does_not_wait_and_says_so_not))
    header.number = 0;
  put_header(message, header);
}

void tamper_with_reply(std::span<const std::byte> request, std::span<std::byte> reply, std::uint64_t step, World& world) {
  if (world.bug != Bug::pull_does_not_wait_and_says_so_not || header_of(request).ask != Ask::pull) return;
  Seen seen;
  std::memcpy(&seen, reply.data(), sizeof seen);
  seen.slowest = static_cast<std::int64_t>(step);
  std::memcpy(reply.data(), &seen, sizeof seen);
}

}  // namespace tessera::ps::simulation
