#include "comm/request_wire.hpp"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/hex.hpp"
#include "comm/fields.hpp"
#include "comm/frames.hpp"

namespace tessera::comm {
namespace {

constexpr std::size_t kLongestAddress = 16 << 10;

std::string digits_of(std::uint64_t number) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(number >> (8 * i));
  return to_hex(bytes);
}

std::uint64_t number_in(const nlohmann::json& message, const char* name) {
  const std::string bytes = bytes_in(message, name, 8);
  if (bytes.size() != 8) refuse_message(text(name, " has ", bytes.size(), " bytes"), "8");
  std::uint64_t number = 0;
  for (int i = 0; i < 8; ++i)
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)])) << (8 * i);
  return number;
}

bool flag_in(const nlohmann::json& message, const char* name) {
  const auto found = message.find(name);
  if (found == message.end() || !found->is_boolean()) refuse_message(text("it does not say whether ", name), "true or false");
  return found->get<bool>();
}

}  // namespace

std::string to_body(const ClientWords& words) {
  return nlohmann::json{
      {"address", to_hex(words.network_address)}, {"connection", digits_of(words.connection)}, {"to_standby", words.to_standby}}.dump();
}

std::string to_body(const ServerWords& words) {
  return nlohmann::json{
      {"address", to_hex(words.network_address)}, {"session", digits_of(words.session)}, {"standby", words.standby}}.dump();
}

ClientWords client_words_from(const std::string& body) {
  const nlohmann::json message = parse_object(body);
  return {bytes_in(message, "address", kLongestAddress), number_in(message, "connection") & 0x7FFFFFFF, flag_in(message, "to_standby")};
}

ServerWords server_words_from(const std::string& body) {
  const nlohmann::json message = parse_object(body);
  return {bytes_in(message, "address", kLongestAddress), number_in(message, "session"), flag_in(message, "standby")};
}

void* begin_receive(ucp_worker_h worker, const MessageBuffer& into, std::uint64_t tag, std::uint64_t mask, ucp_tag_recv_nbx_callback_t done,
                    void* user) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  parameters.cb.recv = done;
  parameters.user_data = user;
  parameters.memory_type = UCS_MEMORY_TYPE_HOST;
  void* const request = ucp_tag_recv_nbx(worker, into.data(), kBufferBytes, tag, mask, &parameters);
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

ucs_status_ptr_t begin_send(ucp_ep_h endpoint, const MessageBuffer& from, std::size_t bytes, std::uint64_t tag,
                            ucp_send_nbx_callback_t done, void* user) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  parameters.cb.send = done;
  parameters.user_data = user;
  parameters.memory_type = UCS_MEMORY_TYPE_HOST;
  return ucp_tag_send_nbx(endpoint, from.data(), kHeaderBytes + bytes, tag, &parameters);
}

ucp_ep_h connect_endpoint(ucp_worker_h worker, const std::string& address, ucp_err_handler_cb_t broken, void* argument) {
  ucp_worker_progress(worker);  // a reset that has been seen is none: see Network::endpoint_to
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = broken;
  parameters.err_handler.arg = argument;
  ucp_ep_h endpoint = nullptr;
  return ucp_ep_create(worker, &parameters, &endpoint) == UCS_OK ? endpoint : nullptr;
}

bool close_endpoints(ucp_worker_h worker, std::span<const ucp_ep_h> endpoints) {
  std::vector<ucs_status_ptr_t> closing;
  for (const ucp_ep_h endpoint : endpoints) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &parameters);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  const auto still_closing = [&closing] {
    return std::ranges::any_of(closing, [](ucs_status_ptr_t request) { return ucp_request_check_status(request) == UCS_INPROGRESS; });
  };
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (still_closing() && std::chrono::steady_clock::now() < give_up)
    if (ucp_worker_progress(worker) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  const bool closed = !still_closing();
  for (const ucs_status_ptr_t request : closing) ucp_request_free(request);
  return closed;
}

}  // namespace tessera::comm
