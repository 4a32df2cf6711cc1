#include "tests/testing/health_probe.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"

namespace optshard::testing {
namespace {

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr absl::Duration kPause = absl::Milliseconds(5);

// Field 1 of the request is the name, of which a byte says how long it is.
std::string EncodeRequest(const std::string& service) {
  if (service.empty()) return "";
  return absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
}

}  // namespace

// Its messages have one field each way, so no client of generated code is needed.
Health ProbeHealth(int port, const std::string& service) {
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::internal::RpcMethod method(kCheck, nullptr, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Slice slice(EncodeRequest(service));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  const grpc::Status called = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, &context, request, &response);
  if (called.error_code() == grpc::StatusCode::NOT_FOUND) return Health::kUnknownService;
  std::vector<grpc::Slice> slices;
  if (!called.ok() || !response.Dump(&slices).ok()) return Health::kNoAnswer;
  std::string bytes;
  for (const grpc::Slice& each : slices) bytes.append(each.begin(), each.end());
  // Field 1 of the answer is the status: 1 is SERVING.
  return bytes == std::string("\x08\x01", 2) ? Health::kServing : Health::kNotServing;
}

bool AwaitHealth(int port, const std::string& service, Health expected, absl::Duration patience) {
  const absl::Time deadline = Clock::Monotonic().Now() + patience;
  while (ProbeHealth(port, service) != expected) {
    if (Clock::Monotonic().Now() >= deadline) return false;
    absl::SleepFor(kPause);
  }
  return true;
}

}  // namespace optshard::testing
