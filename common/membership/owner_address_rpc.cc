#include "common/membership/owner_address_rpc.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

constexpr uint32_t kLargestPort = 65535;

v1::OwnerAddress PackNumeric(const std::string& address) {
  v1::OwnerAddress proto;
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(absl::string_view(address).substr(colon + 1), &port) ||
      port > kLargestPort) {
    return proto;
  }
  std::string host = address.substr(0, colon);
  in_addr four;
  in6_addr six;
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) {
    proto.set_ipv4(ntohl(four.s_addr));
  } else if (host.front() == '[' && host.back() == ']' &&
             inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &six) == 1) {
    proto.set_ipv6(&six, sizeof six);
  }
  proto.set_port(port);
  return proto;
}

}  // namespace

v1::OwnerAddress PackAddress(const std::string& address) {
  v1::OwnerAddress proto = PackNumeric(address);
  // An address has several spellings, and the same text has to come back.
  const absl::StatusOr<std::string> back = UnpackAddress(proto);
  if (back.ok() && *back == address) return proto;
  proto.Clear();
  proto.set_text(address);
  return proto;
}

absl::StatusOr<std::string> UnpackAddress(const v1::OwnerAddress& proto) {
  if (proto.port() > kLargestPort) {
    return absl::InvalidArgumentError(
        absl::StrCat("an address has port ", proto.port(), ", expected at most ", kLargestPort));
  }
  char text[INET6_ADDRSTRLEN] = "";
  switch (proto.host_case()) {
    case v1::OwnerAddress::kIpv4: {
      in_addr four;
      four.s_addr = htonl(proto.ipv4());
      inet_ntop(AF_INET, &four, text, sizeof text);
      return absl::StrCat(text, ":", proto.port());
    }
    case v1::OwnerAddress::kIpv6: {
      in6_addr six;
      if (proto.ipv6().size() != sizeof six) {
        return absl::InvalidArgumentError(absl::StrCat("an IPv6 address has ", proto.ipv6().size(),
                                                       " bytes, expected ", sizeof six));
      }
      std::memcpy(&six, proto.ipv6().data(), sizeof six);
      inet_ntop(AF_INET6, &six, text, sizeof text);
      return absl::StrCat("[", text, "]:", proto.port());
    }
    case v1::OwnerAddress::kText: {
      const absl::Status fits = CheckLength("an owner's address", proto.text());
      if (!fits.ok()) return fits;
      return proto.text();
    }
    case v1::OwnerAddress::HOST_NOT_SET:
      return std::string();
  }
  return absl::InvalidArgumentError("an address is of no known kind");
}

}  // namespace optshard
