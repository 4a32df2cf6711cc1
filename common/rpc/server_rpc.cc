#include "common/rpc/server_rpc.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include "absl/strings/str_cat.h"

namespace optshard {

absl::StatusOr<ListeningServer> StartServer(absl::string_view address,
                                            const std::vector<grpc::Service*>& services) {
  // Both are switches of the whole process; linking the reflection library alone throws the second.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  ListeningServer result;
  grpc::ServerBuilder builder;
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(kLargestMessageBytes);
  builder.SetMaxSendMessageSize(kLargestMessageBytes);
  // Or two servers could share a port, and clients would reach either.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Connections of hosts that vanished end by keepalive. Leases notice them long before: keepalive
  // must not be the one to decide that a stopped process is dead.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 60'000);
  // Clients ping each 10 s (common/rpc/channel_rpc.cc); the default answers that with GOAWAY.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddListeningPort(std::string(address), grpc::InsecureServerCredentials(), &result.port);
  result.server = builder.BuildAndStart();
  if (result.server == nullptr || result.port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at ", address,
                     ": the port is taken, or the address is none of this machine; use port 0 for "
                     "any free one"));
  }
  return result;
}

std::string WithPort(absl::string_view address, int port) {
  const size_t colon = address.rfind(':');
  // An IPv6 address without a port ends in its bracket.
  const bool has_port =
      colon != absl::string_view::npos && address.find(']', colon) == absl::string_view::npos;
  return absl::StrCat(has_port ? address.substr(0, colon) : address, ":", port);
}

}  // namespace optshard
