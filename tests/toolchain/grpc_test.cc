// Protocol Buffers, gRPC, Abseil and GoogleTest build and link together.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/toolchain/echo.grpc.pb.h"

namespace optshard::toolchain {
namespace {

class EchoService final : public Echo::Service {
 public:
  grpc::Status Echo(grpc::ServerContext*, const EchoMessage* request,
                    EchoMessage* response) override {
    absl::MutexLock lock(&mutex_);
    response->set_text(absl::StrCat(++calls_, ": ", request->text()));
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(Toolchain_Grpc, CallOverLoopback_IsAnswered) {
  EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  auto stub = Echo::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  EchoMessage request;
  request.set_text("bucket");
  EchoMessage response;
  const grpc::Status status = stub->Echo(&context, request, &response);

  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.text(), testing::StrEq("1: bucket"));
}

}  // namespace
}  // namespace optshard::toolchain
